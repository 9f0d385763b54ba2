"""Settings: what wins, where each value comes from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.settings import WorkerSettings
from system.settings import Loaded, SettingsRefused, load, resolved, shown, shown_temporal


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "stepwise.toml"
    path.write_text(text)
    return path


def _refused(env: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(SettingsRefused) as caught:
        load(env, file)
    return str(caught.value)


def test_without_anything_every_setting_is_its_default() -> None:
    loaded = load({})

    assert loaded.settings == WorkerSettings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.temporal == {"target_host": "127.0.0.1:7233", "namespace": "default"}
    assert set(loaded.temporal_origins.values()) == {"default"}


def test_the_environment_beats_the_file_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    path = _file(tmp_path, '# mine\ntask_queue = "from-file"\nmax_runs = 7\n')

    loaded = load({"STEPWISE_MAX_RUNS": "9"}, path)

    assert (loaded.settings.task_queue, loaded.settings.max_runs) == ("from-file", 9)
    assert loaded.origins["task_queue"] == f"file {path}:2"
    assert loaded.origins["max_runs"] == "environment STEPWISE_MAX_RUNS"
    assert loaded.origins["store"] == "default"


def test_the_file_of_the_working_folder_is_read_unless_another_is_named(tmp_path: Path) -> None:
    Path("stepwise.toml").write_text("max_runs = 3\n")
    other = _file(tmp_path, "max_runs = 4\n")

    assert load({}).settings.max_runs == 3
    assert load({"STEPWISE_CONFIG": str(other)}).settings.max_runs == 4
    assert load({"STEPWISE_CONFIG": ""}).settings.max_runs == WorkerSettings().max_runs


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    message = _refused({"STEPWISE_CONFIG": str(tmp_path / "absent.toml")})

    assert "absent.toml" in message
    assert "STEPWISE_CONFIG" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("claude-cli, stub", ["claude-cli", "stub"]),
        ('["a, b", "c"]', ["a, b", "c"]),
        ("", []),
    ],
)
def test_lists_in_the_environment_are_comma_separated_or_json(text: str, expected: list[str]) -> None:
    assert load({"STEPWISE_TRANSPORTS": text}).settings.transports == expected


def test_an_unknown_variable_is_named_with_the_nearest_known_one() -> None:
    message = _refused({"STEPWISE_MAX_RUN": "3"})

    assert "there is no setting STEPWISE_MAX_RUN " in message
    assert "STEPWISE_MAX_RUNS?" in message


def test_an_unknown_key_of_the_file_is_named_with_its_line_and_the_nearest_one(tmp_path: Path) -> None:
    path = _file(tmp_path, "\nlog_levle = 'INFO'\n")

    message = _refused({}, path)

    assert f"file {path}:2: there is no setting log_levle" in message
    assert "did you mean log_level?" in message


def test_a_table_in_the_file_is_an_unknown_key(tmp_path: Path) -> None:
    path = _file(tmp_path, "[worker]\nmax_runs = 3\n")

    assert f"{path}:1: there is no setting worker" in _refused({}, path)


def test_variables_of_a_run_are_no_settings() -> None:
    assert load({"STEPWISE_RUN": "fix-1", "OTHER": "x"}).settings == WorkerSettings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STEPWISE_MAX_RUNS", "many"),
        ("STEPWISE_MAX_RUNS", "0"),
        ("STEPWISE_MAX_RUNS", "1.5"),
        ("STEPWISE_HEARTBEAT_S", "inf"),
        ("STEPWISE_HEARTBEAT_S", "nan"),
        ("STEPWISE_HEARTBEAT_S", "-1"),
        ("STEPWISE_FSYNC", "maybe"),
        ("STEPWISE_LOG_LEVEL", "info"),
        ("STEPWISE_TRANSPORTS", "[not json"),
        ("STEPWISE_TRANSPORTS", "[1]"),
        ("STEPWISE_DATA_DIR", ""),
        ("STEPWISE_STORE", "/srv/store"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_variable(variable: str, value: str) -> None:
    assert variable in _refused({variable: value})


@pytest.mark.parametrize(
    "line",
    [
        'max_runs = "4"',
        "max_runs = true",
        "max_runs = 4.0",
        "task_queue = 3",
        "task_queue = 2026-01-01",
        'fsync = "yes"',
        'transports = "stub"',
        "heartbeat_s = inf",
        "heartbeat_s = '5'",
    ],
)
def test_the_file_has_types_and_they_must_fit(line: str, tmp_path: Path) -> None:
    path = _file(tmp_path, line + "\n")

    assert f"{path}:1" in _refused({}, path)


def test_whole_numbers_are_times_too(tmp_path: Path) -> None:
    assert load({}, _file(tmp_path, "heartbeat_s = 5\n")).settings.heartbeat_s == 5.0


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    assert "must be TOML" in _refused({}, _file(tmp_path, "max_runs: 3\n"))


def test_a_token_where_the_name_of_a_variable_belongs_is_refused_and_not_repeated() -> None:
    message = _refused({"STEPWISE_GIT_CREDENTIALS": "ghp_abcDEF123"})

    assert "name of a variable" in message
    assert "ghp_abcDEF123" not in message


def test_a_refused_value_is_not_repeated() -> None:
    assert "s3cret" not in _refused({"STEPWISE_MAX_RUNS": "s3cret"})


def test_paths_of_the_file_are_relative_to_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, 'data_dir = "state"\nflow_paths = ["flows", "/abs", "~/mine"]\n')

    settings = load({}, path).settings

    assert settings.data_dir == tmp_path / "state"
    assert settings.flow_paths == [tmp_path / "flows", Path("/abs"), Path("~/mine")]


def test_resolved_settings_have_absolute_paths_and_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")

    settings = resolved(load({"STEPWISE_FLOW_PATHS": "~/flows"}).settings)

    assert settings.data_dir == Path("/home/someone/.local/state/stepwise")
    assert settings.store == "file:///home/someone/.local/state/stepwise/store"
    assert settings.flow_paths == [Path("/home/someone/flows")]


def test_a_store_that_is_named_stays_as_it_is() -> None:
    assert resolved(load({"STEPWISE_STORE": "file:///srv/s"}).settings).store == "file:///srv/s"


def test_credentials_in_urls_are_masked() -> None:
    assert shown(["https://me:token@example.org/r.git", "x"]) == "https://***@example.org/r.git, x"
    assert shown(0.25) == "0.25"
    assert shown(value=True) == "true"


def test_the_connection_comes_from_temporals_variables() -> None:
    loaded = load(
        {"TEMPORAL_ADDRESS": "t.example:7233", "TEMPORAL_NAMESPACE": "lab", "TEMPORAL_API_KEY": "k3y"}
    )

    assert (loaded.address, loaded.namespace) == ("t.example:7233", "lab")
    assert loaded.temporal["api_key"] == "k3y"
    assert loaded.temporal_origins["target_host"] == "environment TEMPORAL_ADDRESS"
    assert loaded.temporal_origins["tls"] == "environment TEMPORAL_API_KEY"
    assert shown_temporal(loaded)["api_key"] == "***"


def _profiles(tmp_path: Path) -> Path:
    path = tmp_path / ".config" / "temporalio" / "temporal.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        '[profile.default]\naddress = "file:1"\n[profile.lab]\naddress = "lab:2"\nnamespace = "n"\n'
    )
    return path


def _connection(loaded: Loaded) -> tuple[str, str, str]:
    return loaded.address, loaded.namespace, loaded.temporal_origins["target_host"]


def test_temporals_profile_file_is_read_from_the_given_home(tmp_path: Path) -> None:
    path = _profiles(tmp_path)
    home = {"HOME": str(tmp_path)}

    assert _connection(load(home)) == ("file:1", "default", f"file {path} profile default")
    assert _connection(load({**home, "TEMPORAL_PROFILE": "lab"})) == (
        "lab:2",
        "n",
        f"file {path} profile lab",
    )
    assert _connection(load({"TEMPORAL_CONFIG_FILE": str(path)}))[0] == "file:1"
    assert _connection(load({**home, "TEMPORAL_ADDRESS": "env:3"}))[0] == "env:3"


@pytest.mark.parametrize(
    "env",
    [
        {"TEMPORAL_PROFILE": "nope"},
        {"TEMPORAL_PROFILE": "nope", "TEMPORAL_CONFIG_FILE": "profiles.toml"},
        {"TEMPORAL_CONFIG_FILE": "/nowhere/temporal.toml"},
        {"TEMPORAL_CONFIG_FILE": "broken.toml"},
    ],
)
def test_a_profile_or_file_that_cannot_be_used_is_refused(env: dict[str, str]) -> None:
    Path("profiles.toml").write_text('[profile.default]\naddress = "a:1"\n')
    Path("broken.toml").write_text("[profile\n")

    assert "TEMPORAL_" in _refused(env)


def test_the_name_of_a_secret_cannot_be_allowed_to_children() -> None:
    said = _refused({"STEPWISE_ENVIRONMENT": "LANG,GITHUB_TOKEN"})
    assert "environment STEPWISE_ENVIRONMENT: environment: GITHUB_TOKEN is the name of a secret" in said


def test_every_setting_can_be_said_in_both_places(tmp_path: Path) -> None:
    defaults = WorkerSettings().model_dump(mode="json")
    defaults["store"], defaults["git_credentials"] = "file:///s", "TOKEN"
    as_text = {
        f"STEPWISE_{name.upper()}": json.dumps(value) if isinstance(value, list) else str(value)
        for name, value in defaults.items()
    }
    as_toml = "\n".join(f"{name} = {json.dumps(value)}" for name, value in defaults.items())

    from_environment = load(as_text)
    from_file = load({}, _file(tmp_path, as_toml))

    assert from_environment.settings == from_file.settings.model_copy(
        update={"data_dir": from_environment.settings.data_dir}
    )
    assert not {"default"} & set(from_environment.origins.values())
    assert not {"default"} & set(from_file.origins.values())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:7233", True),
        ("[::1]:7233", True),
        ("localhost:1", True),
        ("10.0.0.1:7233", False),
        ("localhost.example.org:7233", False),
    ],
)
def test_a_server_on_this_machine_is_known_as_such(address: str, expected: bool) -> None:
    assert load({"TEMPORAL_ADDRESS": address}).is_loopback is expected
