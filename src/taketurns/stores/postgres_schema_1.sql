-- SPDX-License-Identifier: Apache-2.0
-- Version 1, kept in taketurns_schema. Each version is a file that changes the one before.

-- API keys: their hashes, never the keys. changed_at is when the row was last written.
CREATE TABLE taketurns_api_key (
    public_id  text   PRIMARY KEY CHECK (length(public_id) BETWEEN 1 AND 64),
    tenant     text   NOT NULL CHECK (length(tenant) BETWEEN 1 AND 64),
    hash       text   NOT NULL CHECK (length(hash) = 64),
    created_s  bigint NOT NULL,
    revoked_s  bigint,
    note       text   NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX taketurns_api_key_changed ON taketurns_api_key (changed_at);

-- How much of a month's quota may have been granted by all gateways together: the sum of what
-- each has taken. tenant '' is the count of all tenants together.
CREATE TABLE taketurns_month_mark (
    month  text   NOT NULL CHECK (length(month) = 7),
    rule   text   NOT NULL,
    tenant text   NOT NULL,
    mark   bigint NOT NULL CHECK (mark BETWEEN 0 AND 9007199254740992),
    PRIMARY KEY (month, rule, tenant)
);

-- What one gateway that runs has taken of a mark: an absolute number, so that writing it again
-- changes nothing. A gateway that stops takes its rows away; the mark stays.
CREATE TABLE taketurns_month_share (
    month  text   NOT NULL,
    rule   text   NOT NULL,
    tenant text   NOT NULL,
    holder text   NOT NULL,
    mark   bigint NOT NULL,
    PRIMARY KEY (month, rule, tenant, holder),
    FOREIGN KEY (month, rule, tenant) REFERENCES taketurns_month_mark ON DELETE CASCADE
);

-- What was used in a day of the configured time zone.
CREATE TABLE taketurns_usage (
    day           text   NOT NULL CHECK (length(day) = 10),
    tenant        text   NOT NULL,
    model         text   NOT NULL,
    endpoint      text   NOT NULL,
    requests      bigint NOT NULL,
    refusals      bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost          bigint NOT NULL,
    PRIMARY KEY (day, tenant, model, endpoint)
);

-- The last batch of each writer that is in taketurns_usage: one that is sent again adds nothing.
CREATE TABLE taketurns_usage_writer (
    writer text   PRIMARY KEY,
    batch  bigint NOT NULL,
    day    text   NOT NULL
);
