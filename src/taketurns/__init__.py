# SPDX-License-Identifier: Apache-2.0
"""Fair scheduling for many tenants that share one pool of LLM engines.

Importing this loads the scheduling core and the asyncio façade, not the gateway.
"""
