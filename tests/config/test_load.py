# SPDX-License-Identifier: Apache-2.0
"""The file becomes a configuration, or every fault of it in the operator's words."""

from pathlib import Path

import pytest
import yaml

from taketurns.config import yaml_tree
from taketurns.config.faults import SECTIONS
from taketurns.config.load import FILE_BYTES_MAX, load, parse
from taketurns.config.section import Section
from taketurns.config.yaml_tree import DEPTH_MAX
from taketurns.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "taketurns.yaml"

TIERS = "tiers: {production: {rank: 0}}\n"
MODELS = 'models: {chat: {endpoints: [chat], engines: [{url: "http://h:1"}]}}\n'
TENANTS = "tenants: {acme: {tier: production}}\n"
GOOD = TIERS + MODELS + TENANTS


def model(fields: str) -> str:
    """Return a file whose model has these fields besides what it needs."""
    return (
        TIERS
        + TENANTS
        + f'models: {{m: {{endpoints: [chat], engines: [{{url: "http://h:1"}}], {fields}}}}}\n'
    )


def embeddings(fields: str) -> str:
    """Return a file with an embeddings model that has these fields besides."""
    return model(fields).replace("[chat]", "[embeddings]")


def engine(fields: str) -> str:
    """Return a file whose model has one engine of these fields."""
    return TIERS + TENANTS + f"models: {{m: {{endpoints: [chat], engines: [{{{fields}}}]}}}}\n"


def tenant(fields: str) -> str:
    """Return a file whose tenant has these fields besides its tier."""
    return TIERS + MODELS + f"tenants: {{acme: {{tier: production, {fields}}}}}\n"


def faults_of(text: str, env=None):
    with pytest.raises(ConfigError) as caught:
        parse(text, "test.yaml", env=env or {})
    assert caught.value.source == "test.yaml"
    return caught.value.faults


HASH = "0" * 64

BAD = {
    "empty": ("", [("", "the file is empty", "tiers")]),
    "only a comment": ("# nothing\n", [("", "the file is empty", "tiers")]),
    "a list": ("[1, 2]", [("", "must be a mapping at its top level", "tenants")]),
    "two documents": (GOOD + "---\n" + GOOD, [("line 4", "second document", "one document")]),
    "tag": ("a: !!python/object:os.system {}", [("line 1, column 4", "has a tag", "Remove")]),
    "control character": ("a: \x07b", [("", "is not YAML: it holds a control character", "")]),
    "unknown alias": ("a: *b", [("line 1, column 4", "is an alias of nothing", "Quote")]),
    "alias of itself": ("a: &a [*a]", [("line 1, column 8", "is an alias of nothing", "")]),
    "sections missing": (
        "server: {}",
        [
            ("tiers", "is missing", "Add tiers. The service levels"),
            ("models", "is missing", "Add models."),
            ("tenants", "is missing", "Add tenants."),
        ],
    ),
    "sections empty": (
        "tiers: {}\nmodels: {}\ntenants:\n",
        [
            ("tiers", "must not be empty", "at least one name"),
            ("models", "must not be empty", "at least one name"),
            ("tenants", "must be a mapping, got null", "indented"),
        ],
    ),
    "unknown section": (
        GOOD + "tennants: {}\n",
        [("tennants", "is an unknown key", "Did you mean tenants? Known keys: server, tiers")],
    ),
    "unknown key of a tenant": (
        tenant("wieght: 2"),
        [("tenants.acme.wieght", "is an unknown key", "Did you mean weight? Known keys: tier")],
    ),
    "unknown key with nothing near": (
        tenant("zzz: 2"),
        [("tenants.acme.zzz", "is an unknown key", "Known keys: tier, weight, parallel")],
    ),
    "unknown keys of nested sections": (
        embeddings("batch: {token_max: 1}, engine_limits: {conect: 1s}"),
        [
            ("models.m.batch.token_max", "is an unknown key", "Did you mean tokens_max?"),
            ("models.m.engine_limits.conect", "is an unknown key", "Did you mean connect?"),
        ],
    ),
    "key written twice": (
        TIERS + MODELS + "tenants:\n  acme: {tier: production}\n  acme: {tier: production}\n",
        [("tenants.acme", "is written twice, on lines 4 and 5", "Remove one")],
    ),
    "key that is a list": (
        GOOD + "server: {[a]: 1}\n",
        [("server.?", "has a key that is no text, on line 4", "")],
    ),
    "merge of a scalar": (
        GOOD + "server: {<<: 3}\n",
        [("server.<<", "merges what is no mapping", "")],
    ),
    "bad names": (
        "tiers: {production: {rank: 0}}\n"
        'tenants: {"a|b": {tier: production}, "{x}": {tier: production}, '
        '"*": {tier: production}, "ü": {tier: production}, '
        + "n" * 65
        + ": {tier: production}}\n"
        + MODELS,
        [
            ("tenants.a|b", "is not a name", "A-Z, a-z, 0-9"),
            ("tenants.{x}", "is not a name", "A-Z, a-z, 0-9"),
            ("tenants.*", "is not a name", "A-Z, a-z, 0-9"),
            ("tenants.ü", "is not a name", "A-Z, a-z, 0-9"),
            ("tenants." + "n" * 65, "is not a name", "1 to 64"),
        ],
    ),
    "weight": (
        tenant("weight: 0"),
        [("tenants.acme.weight", "must be 1 to 1,000, got 0", "suspended: true")],
    ),
    "weight too large": (
        tenant("weight: 1001"),
        [("tenants.acme.weight", "must be 1 to 1,000, got 1001", "")],
    ),
    "types": (
        tenant("weight: true, parallel: 1.5, min_priority: high, suspended: yes, keys: x"),
        [
            ("tenants.acme.weight", "must be a whole number, got true", "digits"),
            ("tenants.acme.parallel", "must be a count, got 1.5", "60k"),
            ("tenants.acme.min_priority", 'must be a whole number, got "high"', "digits"),
            ("tenants.acme.suspended", 'must be true or false, got "yes"', "true or false"),
            ("tenants.acme.keys", "must be a list", "[a, b]"),
        ],
    ),
    "null for a section": (
        TIERS + MODELS + "tenants: {acme: }\n",
        [("tenants.acme", "must be a mapping, got null", "leave it out")],
    ),
    "a number for a text": (
        tenant("").replace("production, ", "7"),
        [("tenants.acme.tier", "must be text, got 7", "quotes")],
    ),
    "unknown tier": (
        TIERS + MODELS + "tenants: {acme: {tier: prodction}}\n",
        [
            (
                "tenants.acme.tier",
                'is "prodction", and there is no such tier',
                "Did you mean production? Known tiers: production.",
            )
        ],
    ),
    "unknown tenant": (
        model("tenants: [acme, acm, zzz]"),
        [
            ("models.m.tenants[1]", 'is "acm", and there is no such tenant', "Did you mean acme?"),
            ("models.m.tenants[2]", 'is "zzz", and there is no such tenant', "Known tenants: acme"),
        ],
    ),
    "ranks and floors": (
        "tiers: {a: {rank: 0, floor: 30%}, b: {rank: 1, floor: 21%}, production: {rank: 0}}\n"
        + MODELS
        + TENANTS,
        [
            ("tiers", "have floors of 51% together, and at most 50%", "Lower"),
            ("tiers.production.rank", "is 0, and so is that of a", "such as 2"),
        ],
    ),
    "tier values": (
        "tiers: {production: {rank: 0, floor: 51%, slot_share: 0%, queue_timeout: 0}, "
        "b: {rank: 1, floor: 0.05, slot_share: 1, queue_timeout: -1}, c: {}}\n" + MODELS + TENANTS,
        [
            ("tiers", "have floors of 51% together", "Lower"),
            ("tiers.production.floor", 'must be 0% to 50%, got "51%"', ""),
            ("tiers.production.slot_share", 'must be 1% to 100%, got "0%"', ""),
            ("tiers.production.queue_timeout", "must be 1ms to 24h, got 0", ""),
            ("tiers.b.floor", "must be a percentage, got 0.05", "0% to 100%"),
            ("tiers.b.slot_share", "must be a percentage, got 1", "0% to 100%"),
            ("tiers.b.queue_timeout", "must be a duration, got -1", "500ms"),
            ("tiers.c.rank", "is missing", "Add rank. Order of service"),
        ],
    ),
    "server": (
        GOOD + "server: {port: 65536, drain: 5 minutes, body_bytes_max: 8MB, host: ''}\n",
        [
            ("server.port", "must be 0 to 65,535, got 65536", ""),
            ("server.drain", 'must be a duration, got "5 minutes"', "5m"),
            ("server.body_bytes_max", 'must be a size in bytes, got "8MB"', "8M"),
            ("server.host", 'must not be empty, got ""', ""),
        ],
    ),
    "one port for both": (
        GOOD + "server: {port: 9000, admin_port: 9000}\n",
        [("server.admin_port", "is the same as server.port, got 9000", "of its own")],
    ),
    "open admin side": (
        GOOD + "server: {admin_host: 0.0.0.0}\n",
        [("server", "opens the admin side to the network without a token", "server.admin_token")],
    ),
    "model values": (
        model("cost: token, quantum: 0, scheduler: fifo, debt_rounds: 0, queue_max: 1x"),
        [
            (
                "models.m.cost",
                'must be requests, tokens or ema, got "token"',
                "Did you mean tokens?",
            ),
            ("models.m.quantum", "must be 1 to 1,000,000,000, got 0", ""),
            ("models.m.scheduler", 'must be round_robin or shared_queue, got "fifo"', ""),
            ("models.m.debt_rounds", "must be 1 to 1,000,000, got 0", ""),
            ("models.m.queue_max", 'must be a count, got "1x"', "60k"),
        ],
    ),
    "both kinds in one model": (
        model("").replace("[chat]", "[chat, embeddings]"),
        [("models.m.endpoints", "mixes embeddings or rerank with chat", "Make two models")],
    ),
    "endpoints": (
        model("").replace("[chat]", "[chat, embeding]"),
        [
            (
                "models.m.endpoints[1]",
                'embeddings or rerank, got "embeding"',
                "Did you mean embeddings?",
            )
        ],
    ),
    "endpoints twice": (
        model("").replace("[chat]", "[chat, chat]"),
        [("models.m.endpoints", "names an endpoint twice", "once")],
    ),
    "no endpoints, no engines": (
        TIERS + TENANTS + "models: {m: {endpoints: [], engines: []}}\n",
        [
            ("models.m.endpoints", "must not be empty", "[embeddings]"),
            ("models.m.engines", "must not be empty", "url"),
        ],
    ),
    "embeddings keys on a chat model": (
        model("batch: {}, input_tokens_max: 5, inputs_max: 5, dimensions: true"),
        [
            ("models.m.batch", "is for embeddings only", "Remove"),
            ("models.m.input_tokens_max", "is for embeddings only", "Remove"),
            ("models.m.inputs_max", "is for embeddings only", "Remove"),
            ("models.m.dimensions", "is for embeddings only", "Remove"),
        ],
    ),
    "engine of no kind": (
        engine("slots: 3"),
        [("models.m.engines[0]", "either `url` or `embedded`", "{embedded: smollm2}")],
    ),
    "engine of both kinds": (
        engine('url: "http://h:1", embedded: smollm2'),
        [("models.m.engines[0]", "either `url` or `embedded`", "{embedded: smollm2}")],
    ),
    "engine that is no mapping": (
        TIERS + TENANTS + 'models: {m: {endpoints: [chat], engines: ["http://h:1"]}}\n',
        [("models.m.engines[0]", "must be a mapping with either", "{url:")],
    ),
    "unknown keys of engines": (
        engine('url: "http://h:1", slot: 3}, {embedded: smollm2, key: x'),
        [
            (
                "models.m.engines[0].slot",
                "is an unknown key",
                "Did you mean slots? Known keys: url",
            ),
            ("models.m.engines[1].key", "is an unknown key", "Known keys: embedded, slots"),
        ],
    ),
    "engine values": (
        engine('url: "http://h:1", slots: -1, key: "a b", model: "", name: "a b"'),
        [
            ("models.m.engines[0].slots", "must be auto or 0 to 10,000, got -1", ""),
            ("models.m.engines[0].key", "must be printable ASCII", "environment variable"),
            ("models.m.engines[0].model", 'must not be empty, got ""', "leave the key out"),
            ("models.m.engines[0].name", "is not a name", "1 to 64"),
        ],
    ),
    "unknown embedded model": (
        engine("embedded: smollm3"),
        [("models.m.engines[0].embedded", 'minilm, got "smollm3"', "Did you mean smollm2?")],
    ),
    "embedded model of the other kind": (
        engine("embedded: minilm"),
        [("models.m.engines", "has minilm, which serves embeddings only", "smollm2")],
    ),
    "embedded chat model for embeddings": (
        engine("embedded: smollm2").replace("[chat]", "[embeddings]"),
        [("models.m.engines", "has smollm2, which serves no embeddings", "minilm")],
    ),
    "engines of one name": (
        engine('url: "http://a:1", name: x}, {url: "http://b:1", name: x'),
        [("models.m.engines", "gives two engines the same name", "differently")],
    ),
    "urls": (
        engine(
            'url: "ftp://h"}, {url: "http://"}, {url: "http://h:99999"}, {url: "http://u:p@h"}, '
            '{url: "http://h/?a=b"}, {url: "http://h/v1/"}, {url: "http://h h"}, {url: 7'
        ),
        [
            ("models.m.engines[0].url", "must be an http or https URL", "http://127.0.0.1"),
            ("models.m.engines[1].url", "must be an http or https URL", "http://127.0.0.1"),
            ("models.m.engines[2].url", "is not a URL", "http://127.0.0.1"),
            ("models.m.engines[3].url", "must not hold a user or a password", "`key`"),
            ("models.m.engines[4].url", "without a query, a fragment or blanks", ""),
            ("models.m.engines[5].url", "must not end in /v1", "Leave /v1 out"),
            ("models.m.engines[6].url", "without a query, a fragment or blanks", ""),
            ("models.m.engines[7].url", "must be text", "quotes"),
        ],
    ),
    "keys": (
        tenant(f'keys: ["abc:{HASH}", "abcdefghijkl:{HASH}", "abcdefghijkl:{HASH}"]'),
        [
            ("tenants.acme.keys[0]", "must be PUBLIC_ID:SHA256", "`taketurns keys create`"),
            ("tenants.acme.keys[2]", "has the same public id as a key of acme", "one tenant"),
        ],
    ),
    "a store without a database": (
        GOOD + 'store: "postgresql://tt@host/"\n',
        [("store", "names no database", "postgresql://USER@HOST/NAME")],
    ),
    "store": (
        GOOD + "store: redis://h\n",
        [("store", "is not a store that is known here", "sqlite:///")],
    ),
    "a coordinator beside a file for one": (
        GOOD + 'store: "sqlite:///t.db"\ncoordinator: "redis://h"\n',
        [("coordinator", "the SQLite file under store is for one", "postgresql://")],
    ),
    "a coordinator and months that nobody shares": (
        GOOD + "coordinator: redis://h\nlimits: [{unit: requests, per: month, max: 1}]\n",
        [("coordinator", "a limit per month needs a store that they share", "postgresql://")],
    ),
    "store without a file": (
        GOOD + 'store: "sqlite:///"\n',
        [("store", "is not a store that is known here", "sqlite:///")],
    ),
    "variable not set": (
        GOOD + 'server: {port: "${PORT}", log: "${LOG:-off}"}\n',
        [("server.port", "needs the environment variable PORT, which is not set", "Set PORT")],
    ),
    "no variable": (
        GOOD + 'server: {log: "${LOG", host: "${1X}"}\n',
        [
            ("server.log", "holds ${ that names no environment variable", "${NAME}"),
            ("server.host", "holds ${ that names no environment variable", "${NAME}"),
        ],
    ),
    "wrong types all the way down": (
        "tiers: 3\nmodels: {m: [], n: {tenants: 3}}\ntenants: {a: 3, b: {keys: 3}, c: {keys: [3]}}",
        [
            ("tiers", "must be a mapping, got 3", "indented"),
            ("models.m", "must be a mapping", "leave it out"),
            ("models.n.endpoints", "is missing", "Add endpoints."),
            ("models.n.engines", "is missing", "Add engines."),
            ("models.n.tenants", "must be a list, got 3", ""),
            ("tenants.a", "must be a mapping, got 3", ""),
            ("tenants.b.tier", "is missing", "Add tier. Service level"),
            ("tenants.b.keys", "must be a list", ""),
            ("tenants.c.tier", "is missing", "Add tier. Service level"),
            ("tenants.c.keys[0]", "must be text", ""),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), BAD.values(), ids=BAD.keys())
def test_every_fault_of_a_file_is_reported_at_once_with_its_remedy(text, expected):
    found = faults_of(text)
    assert [fault.path for fault in found] == [path for path, _, _ in expected]
    for fault, (_, problem, hint) in zip(found, expected, strict=True):
        assert problem in fault.problem
        assert hint in fault.hint
        assert not fault.problem.endswith(".")


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request, monkeypatch):
    """PyYAML comes with and without its C parser."""
    monkeypatch.setattr(yaml_tree, "_LOADER", getattr(yaml, request.param))


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text", ["a: [1, 2", "a:\n\t- b\n", "server: {log: ${LOG}}\n", "a: 'b"])
def test_a_syntax_error_says_where_it_is(text):
    (fault,) = faults_of(text)
    assert fault.path.startswith("line ")
    assert fault.problem.startswith("is not YAML: ")
    assert "Quote text" in fault.hint


@pytest.mark.usefixtures("loader")
def test_both_parsers_read_the_example_alike():
    assert load(EXAMPLE, env={}) == parse(EXAMPLE.read_text(), "x", env={})
    assert load(EXAMPLE, env={}).tiers["trial"].queue_timeout == 120.0


def test_faults_stand_in_the_order_of_the_file():
    text = "store: x\n" + TENANTS.replace("production", "p") + "tiers: {production: {}}\n" + MODELS
    assert [f.path for f in faults_of(text)] == [
        "store",
        "tenants.acme.tier",
        "tiers.production.rank",
    ]


def test_the_example_is_valid():
    config = load(EXAMPLE, env={})
    assert (len(config.tiers), len(config.tenants)) == (2, 3)
    assert [len(m.engines) for m in config.models.values()] == [2, 1]


def test_every_section_has_a_row_in_the_table_that_words_faults():
    known = set(SECTIONS.values())
    assert {s for s in Section.__subclasses__() if s.__module__.startswith("taketurns.")} == known


SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        engine('url: "http://h:1", key: ["${S}"]'),
        engine('url: "http://h:1", key: "${S} ${S}"'),
        engine('url: "http://user:${S}@h:1"'),
        engine(f'url: "http://user:{SECRET}@h:1"'),
        engine(f'url: "http://h:1", key: "{SECRET} x"'),
        GOOD + 'server: {admin_token: "${S} x"}\n',
        GOOD + f'server: {{admin_token: "{SECRET} x"}}\n',
        GOOD + 'server: {port: "${S}"}\n',
        GOOD + 'server: {log: {"a": "${S}"}}\n',
        GOOD + 'store: "postgres://u:${S}@h/"\n',
        tenant(f'keys: ["{SECRET}"]'),
        tenant(f"sk-{SECRET}: 1"),
        tenant(f"weight: sk-{SECRET}"),
        tenant('tier: "${S}"').replace("tier: production, ", ""),
        f"server: {{admin_token: *{SECRET}}}\n",
        f"server: {{admin_token: !{SECRET} x}}\n",
        f"server: {{admin_token: !{SECRET}!x x}}\n",
        f"server:\n  admin_token: {SECRET}\n b: c\n",
    ],
)
def test_no_secret_appears_in_a_fault(text):
    found = faults_of(text, env={"S": SECRET})
    assert SECRET not in "\n".join(map(str, found))


def test_an_environment_variable_is_shown_as_it_was_written():
    (fault,) = faults_of(GOOD + 'server: {port: "${PORT}"}\n', env={"PORT": "http"})
    assert fault.problem == 'must be a whole number, got "${PORT}"'


def test_variables_take_their_value_their_default_or_stand_for_themselves():
    text = (
        GOOD.replace('"http://h:1"', '"http://h:1", key: "$${NOT}"')
        + 'server: {port: "${PORT}", log: "/var/${NAME:-a-b}$x.log", drain: "${DRAIN:-5m}", '
        + 'host: "${EMPTY:-127.0.0.1}"}\n'
    )
    config = parse(text, "x", env={"PORT": "9000", "EMPTY": "", "x": "y"})
    assert config.server.port == 9000
    assert config.server.log == "/var/a-b$x.log"
    assert config.server.drain == 300.0
    assert config.server.host == "127.0.0.1"
    assert config.models["chat"].engines[0].key == "${NOT}"


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("TAKETURNS_TEST_PORT", "9000")
    assert parse(GOOD + 'server: {port: "${TAKETURNS_TEST_PORT}"}\n', "x").server.port == 9000


def test_yaml_words_that_are_names_stay_names():
    """YAML 1.1 reads `no`, `off` and `12:30` as something else, silently."""
    config = parse(
        TIERS + MODELS + "tenants: {no: {tier: production}, 123: {tier: production}, "
        "null: {tier: production}}\nserver: {log: off}\n",
        "x",
    )
    assert list(config.tenants) == ["no", "123", "null"]
    assert config.server.log == "off"


def test_merged_keys_give_way_to_those_written_in_place():
    config = parse(
        TIERS + MODELS + "tenants:\n  a: &a {tier: production, weight: 2, parallel: 3}\n"
        "  b: &b {<<: *a, weight: 4}\n  c: {<<: [*b, *a], parallel: 5}\n",
        "x",
    )
    assert [(t.weight, t.parallel) for t in config.tenants.values()] == [(2, 3), (4, 3), (4, 5)]


def test_aliases_that_multiply_are_refused(monkeypatch):
    monkeypatch.setattr(yaml_tree, "NODES_MAX", 10_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (fault,) = faults_of("\n".join(lines))
    assert "too large once its aliases are expanded" in fault.problem


def test_merges_that_multiply_are_refused(monkeypatch):
    monkeypatch.setattr(yaml_tree, "NODES_MAX", 10_000)
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 9)]
    (fault,) = faults_of("\n".join(lines))
    assert "too large once its aliases are expanded" in fault.problem


def test_a_chain_of_aliases_cannot_nest_deeper_than_the_limit():
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2 * DEPTH_MAX)]
    (fault,) = faults_of("\n".join(lines))
    assert "too large once its aliases are expanded" in fault.problem


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_a_deep_file_is_refused_without_recursion(opening):
    (fault,) = faults_of(opening * 20_000)
    assert "nest" in fault.problem


def test_a_file_is_read_with_its_byte_order_mark(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(path).store == "memory"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "the file does not exist"),
        ("directory", "the file is a directory"),
        (b"a: b\nc: \xff\n", "the file is not UTF-8: line 2 holds the byte 0xff"),
        (b"#" * (FILE_BYTES_MAX + 1), "the file is larger than 4 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path, content, problem):
    path = tmp_path / "config.yaml"
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    (fault,) = caught.value.faults
    assert fault.problem == problem
    assert fault.hint
    assert caught.value.source == str(path)
