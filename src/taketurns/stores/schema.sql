-- SPDX-License-Identifier: Apache-2.0
-- Version 3, kept in PRAGMA user_version. Each version adds tables to the one before.

-- API keys: their hashes, never the keys. Since version 1.
CREATE TABLE IF NOT EXISTS api_key (
    public_id TEXT PRIMARY KEY CHECK (length(public_id) BETWEEN 1 AND 64),
    tenant    TEXT NOT NULL CHECK (length(tenant) BETWEEN 1 AND 64),
    hash      TEXT NOT NULL CHECK (length(hash) = 64),
    created_s INTEGER NOT NULL CHECK (typeof(created_s) = 'integer'),
    revoked_s INTEGER CHECK (revoked_s IS NULL OR typeof(revoked_s) = 'integer'),
    note      TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

-- How much of a month's quota may have been granted: the highest count that the gateway
-- may reach without asking again. tenant '' is the count of all together. Since version 2.
CREATE TABLE IF NOT EXISTS month_mark (
    month  TEXT NOT NULL CHECK (length(month) = 7),
    rule   TEXT NOT NULL,
    tenant TEXT NOT NULL,
    mark   INTEGER NOT NULL CHECK (typeof(mark) = 'integer' AND mark BETWEEN 0 AND 9007199254740992),
    PRIMARY KEY (month, rule, tenant)
) WITHOUT ROWID;

-- What was used in a day of the configured time zone. Since version 3.
CREATE TABLE IF NOT EXISTS usage (
    day           TEXT NOT NULL CHECK (length(day) = 10),
    tenant        TEXT NOT NULL,
    model         TEXT NOT NULL,
    endpoint      TEXT NOT NULL,
    requests      INTEGER NOT NULL,
    refusals      INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost          INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model, endpoint)
) WITHOUT ROWID;

-- The last batch of each writer that is in usage: one that is sent again adds nothing.
CREATE TABLE IF NOT EXISTS usage_writer (
    writer TEXT PRIMARY KEY,
    batch  INTEGER NOT NULL,
    day    TEXT NOT NULL
) WITHOUT ROWID;
