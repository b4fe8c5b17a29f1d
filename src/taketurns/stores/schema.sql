-- SPDX-License-Identifier: Apache-2.0
-- API keys: their hashes, never the keys. Version 1, kept in PRAGMA user_version.
CREATE TABLE IF NOT EXISTS api_key (
    public_id TEXT PRIMARY KEY CHECK (length(public_id) BETWEEN 1 AND 64),
    tenant    TEXT NOT NULL CHECK (length(tenant) BETWEEN 1 AND 64),
    hash      TEXT NOT NULL CHECK (length(hash) = 64),
    created_s INTEGER NOT NULL CHECK (typeof(created_s) = 'integer'),
    revoked_s INTEGER CHECK (revoked_s IS NULL OR typeof(revoked_s) = 'integer'),
    note      TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
