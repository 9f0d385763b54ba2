"""Which tests are left to ``make thorough``: more combinations and longer forms of what ``make test`` shows already.

``make test`` shows the engine whole, and of each agent's program that it works; what a program does by itself is here.

Patterns of test ids as ``fnmatch`` reads them, ``[`` and ``]`` as they are. Each must fit a test when all are collected
(conftest.py sees to it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from itertools import groupby
from typing import Final

_CHAOS: Final = "tests/chaos/"
_INTEGRATION: Final = "tests/integration/"
_UNIT: Final = "tests/unit/"
_CONFORMANCE: Final = "tests/conformance/test_conformance.py::test_a_transport_holds"
_AT_ANY_POINT: Final = (
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_at_any_point_shows_nowhere_in_the_result"
)
_IN_A_PHASE: Final = (
    *("work.started", "work.intent", "work.committed", "work.bundled", "work.logged"),
    *("finalize.draft", "measure.gates", "route.done"),
)
_RECORDS: Final = ("measure.done", "record.envelope", "record.receipt", "release.record", "release.done")
_ACQUIRES: Final = ("acquire.cloned", "acquire.leased", "acquire.based", "acquire.done")
_CLAUDE_DENIES: Final = f"{_INTEGRATION}test_claude_work.py::test_what_policy_denies_*"
_DENIED_ALIKE: Final = ("git push", "git reset", "chmod", "../outside", ".claude/", "link/", "Grep")
_CLAUDES_OWN: Final = (
    "test_a_repositorys_own_settings_",
    "test_usage_is_counted_once_",
    "test_an_answer_that_does_not_come_in_time_",
    "test_a_command_begins_in_the_workspace_",
    "test_a_prompt_is_taken_",
    "test_a_whole_step_is_one_session_",
)
_GEMINIS_OWN: Final = (
    "test_a_repository_is_told_of_",
    "test_only_the_listed_tools_exist",
    "test_the_floor_holds_without_a_hook",
    "test_a_hook_that_is_killed_",
)
_ALSO_SHOWN: Final = (
    "waits_for_its_provider",
    "waits_without_being_told_how_long",
    "survives_a_broken_provider",
    "survives_an_overloaded_provider",
    "is_told_no_rules_by_strangers",
    "works_with_its_own_tools",
    "asks_by_schema",
    "heals_torn_sessions",
    "heals_empty_sessions",
    "keeps_sessions_its_provider_refuses",
    "carries_context_across_steps",
    "observes_tools",
    "runs_commands",
    "opens_and_ends",
    "says",
    "gives_up_asking",
    "steers_only_work",
    "survives_a_cut_stream",
    "calls_in_parallel",
    "leaves_nothing_in_the_background",
    "asks_before_calls",
    "goes_on_with_an_answer",
    "survives_huge_lines",
    "asks_again",
    "parks_on_calls",
    "stops_while_it_asks",
    "survives_a_crash",
)
_EXTENDED: Final = ("own1-None-allowed1", "None-whole3-allowed3", "own4-whole4-allowed4")
_LOST: Final = f"{_INTEGRATION}test_lost_sessions.py::test_a_session_whose_file_is_damaged_*"
_EMPTY: Final = ("null", "object")
_LONG_WORDS: Final = ("eval", "trap", "export", "git rm", "x=")
_GOLDEN: Final = "tests/histories/test_golden.py::test_a_flow_run_again_decides_and_records_as_the_golden_run"

PATTERNS: Final[tuple[str, ...]] = (
    # Another point of a phase in which a worker is killed.
    *(f"{_AT_ANY_POINT}[{point}]" for point in (*_ACQUIRES, *_IN_A_PHASE, *_RECORDS)),
    f"{_CHAOS}test_worker_killed.py::test_two_workers_killed_in_a_row_*",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_that_returns_to_a_run_*",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_at_a_record_*",
    f"{_INTEGRATION}test_fork_lost.py::*",
    f"{_CHAOS}test_drain.py::test_a_worker_told_to_end_while_a_run_waits_*",
    f"{_CHAOS}test_real_agents_killed.py::*",
    f"{_CHAOS}test_interrupted_and_killed.py::test_a_retry_on_an_empty_disk_*",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_while_a_gate_runs_*",
    f"{_CHAOS}test_drain.py::test_a_worker_told_to_end_in_the_middle_of_work_*[hangs]",
    f"{_CHAOS}test_drain.py::test_a_worker_told_to_end_while_a_gate_runs_*[before the first step]",
    f"{_CHAOS}test_stale_worker.py::test_a_worker_that_sleeps_through_a_takeover_*[hangs]",
    f"{_CHAOS}test_stale_worker.py::test_a_question_outlives_the_worker_*[disk]",
    f"{_CHAOS}test_interrupted_and_killed.py::test_a_second_worker_goes_on_*[disk]",
    f"{_INTEGRATION}test_activities_recovery.py::*[work.bundled]",
    f"{_INTEGRATION}test_activities_recovery.py::*[work.logged]",
    f"{_INTEGRATION}test_activities_recovery.py::*[acquire.leased]",
    f"{_INTEGRATION}test_activities_recovery.py::*[acquire.based]",
    f"{_INTEGRATION}test_activities_recovery.py::*[record.envelope]",
    f"{_INTEGRATION}test_activities_recovery.py::*[record.receipt]",
    f"{_INTEGRATION}test_activities_recovery.py::test_an_empty_disk_is_rebuilt_*",
    f"{_INTEGRATION}test_activities_recovery.py::test_recovery_repeated_*",
    f"{_INTEGRATION}test_activities_recovery.py::test_results_of_later_phases_*",
    f"{_INTEGRATION}test_activities_recovery.py::test_a_phase_without_a_stored_result_*",
    f"{_INTEGRATION}test_activities_interrupt.py::test_ten_interrupts_*[hangs]",
    f"{_INTEGRATION}test_ends_midway.py::test_a_commit_of_an_attempt_*[work.bundled]",
    f"{_INTEGRATION}test_ends_midway.py::test_a_commit_of_an_attempt_*[work.result]",
    f"{_INTEGRATION}test_ends_midway.py::test_an_abort_after_the_first_worker_died_*[acquire.based]",
    f"{_INTEGRATION}test_stops.py::test_a_reset_is_refused_*[first-waiting]",
    f"{_INTEGRATION}test_stops.py::test_a_reset_is_refused_*[last-at work]",
    # Runs of the shipped flows whose loops and pauses are played.
    f"{_GOLDEN}[*-success]",
    f"{_GOLDEN}[*-failed]",
    f"{_GOLDEN}[build-*]",
    f"{_GOLDEN}[plan-then-implement-*]",
    f"{_GOLDEN}[direct-limited]",
    f"{_GOLDEN}[fix-paused]",
    f"{_INTEGRATION}test_outcomes.py::test_a_shipped_flow_mends_*[build-*",
    f"{_INTEGRATION}test_outcomes.py::test_a_shipped_flow_mends_*[plan-then-implement-*",
    # The same program of Claude over its other door, and what tests/conformance shows of each transport.
    f"{_CONFORMANCE}[*-claude-cli]",
    f"{_CONFORMANCE}[*-codex]",
    *(f"{_CONFORMANCE}[{check}-claude-sdk]" for check in _ALSO_SHOWN),
    f"{_INTEGRATION}test_real_agents.py::test_a_defect_is_mended_*[claude-cli]",
    f"{_INTEGRATION}test_above_the_workspace.py::*[claude-cli-*]",
    f"{_INTEGRATION}test_claude_work.py::*[claude-cli]",
    f"{_INTEGRATION}test_claude_work.py::test_the_cost_of_a_session_*[claude-cli-*",
    f"{_INTEGRATION}test_claude_work.py::test_the_cost_of_a_session_*[claude-sdk-torn]",
    f"{_INTEGRATION}test_claude_work.py::test_what_policy_denies_*[claude-cli-*",
    # How the turns of each program end, which tests/conformance shows of Claude's.
    f"{_INTEGRATION}test_claude_endings.py::*",
    f"{_INTEGRATION}test_codex_endings.py::*",
    f"{_INTEGRATION}test_real_agents.py::*[codex]",
    f"{_INTEGRATION}test_real_agents.py::test_a_defect_is_mended_*[claude-sdk]",
    *(f"{_CLAUDE_DENIES}[claude-sdk-*{what}*" for what in _DENIED_ALIKE),
    *(f"{_INTEGRATION}test_claude_work.py::{what}*" for what in _CLAUDES_OWN),
    # The program that needs the most of a machine.
    f"{_CONFORMANCE}[*-gemini-cli]",
    f"{_INTEGRATION}test_real_agents.py::*[gemini-cli]",
    f"{_INTEGRATION}test_real_agents.py::*_without_a_key_*[gemini-cli-*",
    f"{_INTEGRATION}test_real_agents.py::*_without_a_key_*[claude-*",
    f"{_INTEGRATION}test_handover.py::*[claude-sdk-to-gemini-cli]",
    f"{_INTEGRATION}test_gemini_session.py::*",
    f"{_INTEGRATION}test_gemini_endings.py::*",
    *(f"{_INTEGRATION}test_gemini_floor.py::{what}*" for what in _GEMINIS_OWN),
    f"{_INTEGRATION}test_handover.py::*[gemini-cli-to-claude-cli]",
    f"{_INTEGRATION}test_handover.py::*[codex-to-claude-sdk]",
    f"{_INTEGRATION}test_handover.py::test_a_named_model_is_not_asked_of_*",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[claude-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[claude-sdk]",
    f"{_INTEGRATION}test_above_the_workspace.py::*[gemini-cli-*]",
    f"{_INTEGRATION}test_above_the_workspace.py::*[claude-sdk-stranger]",
    # Other damages of a session's file.
    *(f"{_LOST}[{name}-*" for name in ("claude-sdk", "claude-cli", "gemini-cli")),
    *(f"{_LOST}[*-{damage}]" for damage in ("empty", "garbage", "zeros", "head")),
    f"{_INTEGRATION}test_lost_sessions.py::test_a_program_that_finds_out_in_its_turn_*",
    f"{_INTEGRATION}test_long_texts.py::*[claude-cli]",
    f"{_INTEGRATION}test_long_texts.py::*[gemini-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_task_is_done_in_one_go_*[claude-cli]",
    f"{_INTEGRATION}test_model_only.py::*[claude-cli*]",
    f"{_INTEGRATION}test_model_only.py::test_what_a_program_sends_elsewhere_*[gemini-cli]",
    f"{_INTEGRATION}test_model_only.py::test_a_command_of_the_agent_*[claude-sdk-*",
    f"{_INTEGRATION}test_model_only.py::test_a_command_of_the_agent_*[gemini-cli-*",
    f"{_INTEGRATION}test_real_agents.py::test_a_task_is_done_in_one_go_*[claude-sdk]",
    f"{_INTEGRATION}test_real_tail.py::*[claude-cli]",
    f"{_INTEGRATION}test_real_tail.py::*[gemini-cli]",
    f"{_INTEGRATION}test_demo_handover.py::*",
    f"{_INTEGRATION}test_signs_of_life.py::test_what_takes_longer_*",
    f"{_INTEGRATION}test_signs_of_life.py::test_a_model_that_only_keeps_its_line_open_*",
    f"{_INTEGRATION}test_signs_of_life.py::*[gemini-cli*",
    f"{_INTEGRATION}test_signs_of_life.py::test_pieces_are_not_stored[codex]",
    f"{_INTEGRATION}test_real_answers.py::*",
    f"{_INTEGRATION}test_handover.py::test_an_agent_named_when_the_work_was_done_*",
    f"{_INTEGRATION}test_claude_words.py::*[claude-cli*",
    f"{_INTEGRATION}test_claude_words.py::*[claude-sdk-resumed]",
    f"{_INTEGRATION}test_model_only.py::test_a_program_calls_nobody_*[gemini-cli]",
    f"{_INTEGRATION}test_model_only.py::test_what_a_program_sends_elsewhere_*[claude-sdk]",
    f"{_INTEGRATION}test_model_only.py::test_what_a_program_sends_elsewhere_*[codex]",
    # Whole tables and tours, whose rows have tests of their own.
    f"{_INTEGRATION}test_message_table.py::*",
    f"{_INTEGRATION}test_temporal_ui.py::*",
    f"{_INTEGRATION}test_trace.py::*",
    f"{_INTEGRATION}test_demo.py::test_a_repository_of_ones_own_*",
    f"{_INTEGRATION}test_bad_input.py::test_every_fault_the_linter_knows_*",
    # How long it goes well what a shorter test shows.
    "tests/soak/test_agents_leaks.py::*",
    "tests/soak/test_run_leaks.py::*",
    f"{_INTEGRATION}test_messages_any_time.py::test_a_storm_of_messages_*",
    f"{_INTEGRATION}test_history_size.py::test_three_hundred_visits_*",
    f"{_INTEGRATION}test_history_size.py::test_a_step_costs_*",
    f"{_INTEGRATION}test_history_size.py::test_a_thousand_tool_calls_*",
    f"{_INTEGRATION}test_history_commands.py::test_a_killed_prune_*",
    f"{_INTEGRATION}test_history_commands.py::test_a_live_agent_is_followed_*",
    f"{_INTEGRATION}test_replay.py::test_results_that_a_lost_worker_left_*",
    f"{_INTEGRATION}test_cli_dev.py::test_runs_are_kept_in_the_data_folder_*",
    f"{_INTEGRATION}test_answered.py::test_an_answer_that_comes_as_the_session_is_let_go_*",
    f"{_INTEGRATION}test_attacks.py::test_an_input_with_megabytes_*",
    f"{_INTEGRATION}test_attacks.py::test_messages_of_megabytes_*",
    f"{_INTEGRATION}test_history_commands.py::test_every_end_has_its_name_*",
    f"{_INTEGRATION}test_telemetry.py::test_a_server_that_is_away_*",
    f"{_INTEGRATION}test_replay.py::test_a_run_that_continued_as_new_*",
    "tests/workflows/test_waits.py::test_what_silence_will_mean_is_said_*",
    f"{_UNIT}test_policy_commands.py::test_the_longest_command_line_*",
    *(f"{_UNIT}test_command_targets.py::test_a_long_word_*[{word}*" for word in _LONG_WORDS),
    *(f"{_UNIT}test_policy_commands.py::test_a_long_command_line_*[{word}*" for word in ("eval", "x=")),
    f"{_UNIT}test_redaction.py::test_a_megabyte_made_to_be_slow_*",
    f"{_UNIT}test_routing_status.py::test_a_long_hostile_text_*",
    f"{_UNIT}test_attacks_flows.py::test_a_bomb_is_refused_*",
    f"{_UNIT}test_attacks_flows.py::test_a_scenario_is_held_to_the_same*",
    f"{_INTEGRATION}test_fork.py::test_a_fork_is_forked_when_every_run_before_it_is_gone_from_disk",
    f"{_INTEGRATION}test_developer.py::test_ten_questions_in_a_row_*",
    # Another half of a table whose rows go the same way.
    f"{_INTEGRATION}test_developer.py::test_a_run_is_stopped_while_the_developer_model_decides[*before]",
    f"{_INTEGRATION}test_developer.py::test_a_run_is_stopped_while_the_developer_model_decides[abort-after]",
    f"{_INTEGRATION}test_developer.py::test_a_run_is_stopped_while_the_developer_model_decides[interrupt-after]",
    f"{_INTEGRATION}test_developer.py::test_without_a_model_to_ask_*",
    f"{_INTEGRATION}test_interrupts_between.py::*[resume-payload*",
    f"{_INTEGRATION}test_interrupts_between.py::*[goto-*",
    f"{_INTEGRATION}test_interrupts_between.py::*[retry-*",
    f"{_INTEGRATION}test_agents_that_stop.py::test_an_agent_that_failed_is_tried_again_*[crash0]",
    *(f"{_INTEGRATION}test_budget_waits.py::test_an_extension_lets_the_agent_*[{row}]" for row in _EXTENDED),
    *(f"{_INTEGRATION}test_messages.py::test_pause_and_resume_need_no_payload[{row}-*" for row in _EMPTY),
    f"{_INTEGRATION}test_live_runs.py::test_a_call_is_made_only_with_a_persons_consent[late-*]",
    f"{_INTEGRATION}test_developer.py::test_a_decision_that_is_lost_with_its_worker_*",
    f"{_INTEGRATION}test_developer.py::test_an_answer_that_does_not_fit_*",
    f"{_INTEGRATION}test_developer.py::test_an_agent_that_asks_again_*",
    f"{_INTEGRATION}test_answered.py::test_an_answer_in_any_form_*[*let go]",
    f"{_INTEGRATION}test_cli_dev.py::test_a_port_that_is_taken_*",
    f"{_INTEGRATION}test_cli_dev.py::test_it_says_where_everything_is_*[1]",
    f"{_INTEGRATION}test_cli_dev.py::test_it_says_where_everything_is_*[15]",
    f"{_INTEGRATION}test_fork.py::test_flow_fix_is_forked_from_its_first_step_*",
    f"{_INTEGRATION}test_fork.py::test_a_step_of_a_chained_flow_*",
    f"{_INTEGRATION}test_fork.py::test_a_shallow_repository_*",
    f"{_INTEGRATION}test_fork.py::test_a_second_visit_begins_*",
    f"{_INTEGRATION}test_fork.py::test_gates_of_steps_before_*",
    f"{_INTEGRATION}test_fork.py::test_flow_fix_is_forked_from_review_*",
    f"{_INTEGRATION}test_fork.py::test_a_running_step_is_forked_*",
    f"{_INTEGRATION}test_chains.py::test_a_transport_that_a_person_chose_*",
    f"{_INTEGRATION}test_cli_dev.py::test_the_worker_gets_this_server_*",
    f"{_INTEGRATION}test_ends_midway.py::test_an_agent_that_always_fails_*",
    f"{_INTEGRATION}test_developer.py::test_a_person_decides_*",
    f"{_INTEGRATION}test_demo.py::test_a_demo_that_waits_*",
    f"{_INTEGRATION}test_dev_server.py::test_a_server_one_of_whose_services_*[matching]",
    f"{_AT_ANY_POINT}[record.done]",
    f"{_AT_ANY_POINT}[finalize.done]",
    f"{_INTEGRATION}test_activities_recovery.py::*[work.committed]",
    f"{_INTEGRATION}test_activities_recovery.py::*[record.done]",
    f"{_CHAOS}test_worker_killed.py::test_an_empty_disk_goes_on_*",
)


def _fitting(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "\0").replace("]", "[]]").replace("\0", "[[]")))


# By the file a pattern names: every test would else be held against every pattern.
_FITS: Final = {
    file: {pattern: _fitting(pattern) for pattern in patterns}
    for file, patterns in groupby(sorted(PATTERNS), lambda pattern: pattern.partition("::")[0])
}


def is_thorough(test: str) -> bool:
    """Tell whether the test with this id is left to ``make thorough``."""
    return any(fits.match(test) for fits in _FITS.get(test.partition("::")[0], {}).values())


def unused(tests: Iterable[str]) -> list[str]:
    """Return the patterns that fit none of these ids."""
    known = {file: list(each) for file, each in groupby(sorted(tests), lambda test: test.partition("::")[0])}
    return [
        pattern
        for file, patterns in _FITS.items()
        for pattern, fits in patterns.items()
        if not any(map(fits.match, known.get(file, [])))
    ]
