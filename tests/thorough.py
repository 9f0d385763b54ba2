"""Which tests are left to ``make thorough``: more combinations and longer forms of what ``make test`` shows already.

Patterns of test ids as ``fnmatch`` reads them, ``[`` and ``]`` as they are. Each must fit a test when all are collected
(conftest.py sees to it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Final

_CHAOS: Final = "tests/chaos/"
_INTEGRATION: Final = "tests/integration/"
_CONFORMANCE: Final = "tests/conformance/test_conformance.py::test_a_transport_holds"
_AT_ANY_POINT: Final = (
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_at_any_point_shows_nowhere_in_the_result"
)
_IN_A_PHASE: Final = ("work.intent", "work.committed", "work.bundled", "work.logged", "finalize.draft")
_RECORDS: Final = ("measure.done", "record.receipt", "release.record")
_ACQUIRES: Final = ("acquire.cloned", "acquire.leased", "acquire.based", "acquire.done")
_CLAUDE_ANSWERS: Final = f"{_INTEGRATION}test_claude_endings.py::test_what_the_provider_answers_*"
_CLAUDE_DENIES: Final = f"{_INTEGRATION}test_claude_work.py::test_what_policy_denies_*"
_DENIED_ALIKE: Final = ("git push", "git reset", "chmod", "../outside", ".claude/", "link/", "Grep")
_ALSO_SHOWN: Final = (
    "waits_for_its_provider",
    "waits_without_being_told_how_long",
    "survives_a_broken_provider",
    "survives_an_overloaded_provider",
    "is_told_no_rules_by_strangers",
    "works_with_its_own_tools",
    "asks_by_schema",
    "heals_torn_sessions",
)
_EXTENDED: Final = ("own1-None-allowed1", "None-whole3-allowed3", "own4-whole4-allowed4")
_LOST: Final = f"{_INTEGRATION}test_lost_sessions.py::test_a_session_whose_file_is_damaged_*"
_EMPTY: Final = ("null", "object")
_GOLDEN: Final = "tests/histories/test_golden.py::test_a_flow_run_again_decides_and_records_as_the_golden_run"

PATTERNS: Final[tuple[str, ...]] = (
    # Another point of a phase in which a worker is killed.
    *(f"{_AT_ANY_POINT}[{point}]" for point in (*_ACQUIRES, *_IN_A_PHASE, *_RECORDS)),
    f"{_CHAOS}test_worker_killed.py::test_two_workers_killed_in_a_row_*[work.committed-*]",
    f"{_CHAOS}test_worker_killed.py::test_two_workers_killed_in_a_row_*[record.*]",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_at_a_record_*[record.envelope]",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_at_a_record_*[record.done]",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_while_a_gate_runs_*-disk]",
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
    f"{_INTEGRATION}test_activities_recovery.py::test_an_empty_disk_is_rebuilt_*[measure]",
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
    # The same program of Claude over its other door, and what tests/conformance shows of each transport.
    f"{_CONFORMANCE}[*-claude-cli]",
    *(f"{_CONFORMANCE}[{check}-{name}]" for check in _ALSO_SHOWN for name in ("claude-sdk", "codex")),
    f"{_INTEGRATION}test_real_agents.py::test_a_defect_is_mended_*[claude-cli]",
    f"{_INTEGRATION}test_above_the_workspace.py::*[claude-cli-*]",
    f"{_INTEGRATION}test_claude_work.py::*[claude-cli]",
    f"{_INTEGRATION}test_claude_work.py::test_a_repositorys_own_settings_*[claude-cli-*",
    f"{_INTEGRATION}test_claude_work.py::test_what_policy_denies_*[claude-cli-*",
    f"{_INTEGRATION}test_claude_endings.py::*[claude-cli]",
    f"{_INTEGRATION}test_claude_endings.py::*[claude-cli-*",
    *(f"{_CLAUDE_ANSWERS}Refuse(status={status}*" for status in (400, 403, 404, 413, 500, 529)),
    *(f"{_CLAUDE_DENIES}[claude-sdk-*{what}*" for what in _DENIED_ALIKE),
    *(f"{_INTEGRATION}test_codex_endings.py::*[reply{row}-*-True-*]" for row in (3, 4, 6)),
    # The program that needs the most of a machine.
    f"{_CONFORMANCE}[*-gemini-cli]",
    f"{_INTEGRATION}test_real_agents.py::*[gemini-cli]",
    f"{_INTEGRATION}test_handover.py::*[claude-sdk-to-gemini-cli]",
    f"{_INTEGRATION}test_gemini_floor.py::test_a_repository_is_told_of_*-loaded1]",
    f"{_INTEGRATION}test_gemini_floor.py::test_a_repository_is_told_of_*-loaded2]",
    f"{_INTEGRATION}test_gemini_session.py::test_sessions_of_one_run_work_beside_each_other",
    f"{_INTEGRATION}test_gemini_session.py::test_time_that_people_take_is_not_the_agents",
    f"{_INTEGRATION}test_gemini_session.py::test_a_session_goes_on_over_four_processes_*",
    f"{_INTEGRATION}test_gemini_session.py::test_what_a_server_answers_is_classified*",
    f"{_INTEGRATION}test_gemini_session.py::test_a_prompt_arrives_as_text*",
    f"{_INTEGRATION}test_gemini_session.py::test_a_command_that_ignores_signals_*[cancel*]",
    f"{_INTEGRATION}test_gemini_session.py::test_a_command_that_ignores_signals_*[close]",
    f"{_INTEGRATION}test_gemini_session.py::test_a_command_that_ignores_signals_*[kill]",
    f"{_INTEGRATION}test_handover.py::*[gemini-cli-to-claude-cli]",
    f"{_INTEGRATION}test_handover.py::*[codex-to-claude-sdk]",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[claude-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[claude-sdk]",
    f"{_INTEGRATION}test_above_the_workspace.py::*[gemini-cli-*]",
    f"{_INTEGRATION}test_above_the_workspace.py::*[claude-sdk-stranger]",
    # Other damages of a session's file.
    f"{_LOST}[claude-cli-*",
    f"{_LOST}[gemini-cli-*",
    *(f"{_LOST}[*-{damage}]" for damage in ("empty", "garbage", "zeros")),
    f"{_LOST}[claude-sdk-torn]",
    f"{_LOST}[codex-head]",
    f"{_INTEGRATION}test_lost_sessions.py::test_a_program_that_finds_out_in_its_turn_*",
    f"{_INTEGRATION}test_long_texts.py::*[claude-cli]",
    f"{_INTEGRATION}test_long_texts.py::*[gemini-cli]",
    f"{_INTEGRATION}test_gemini_session.py::test_a_lock_that_a_killed_program_left_*",
    f"{_INTEGRATION}test_real_agents.py::test_a_task_is_done_in_one_go_*[claude-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_task_is_done_in_one_go_*[codex]",
    f"{_INTEGRATION}test_model_only.py::*[claude-cli*]",
    f"{_INTEGRATION}test_model_only.py::test_what_a_program_sends_elsewhere_*[gemini-cli]",
    f"{_INTEGRATION}test_model_only.py::test_a_command_of_the_agent_*[claude-sdk-*",
    f"{_INTEGRATION}test_model_only.py::test_a_command_of_the_agent_*[gemini-cli-*",
    f"{_INTEGRATION}test_real_agents.py::test_a_task_is_done_in_one_go_*[claude-sdk]",
    f"{_INTEGRATION}test_demo_handover.py::*",
    f"{_INTEGRATION}test_signs_of_life.py::*[*-thought]",
    f"{_INTEGRATION}test_signs_of_life.py::*[*-call]",
    f"{_INTEGRATION}test_signs_of_life.py::*[gemini-cli*",
    f"{_INTEGRATION}test_signs_of_life.py::test_a_model_that_only_keeps_its_line_open_*[codex]",
    f"{_INTEGRATION}test_signs_of_life.py::test_pieces_are_not_stored[codex]",
    f"{_INTEGRATION}test_real_answers.py::*[claude-cli]",
    f"{_INTEGRATION}test_claude_words.py::*[claude-cli*",
    f"{_INTEGRATION}test_claude_words.py::*[claude-sdk-resumed]",
    f"{_INTEGRATION}test_model_only.py::test_a_program_calls_nobody_*[gemini-cli]",
    f"{_INTEGRATION}test_model_only.py::test_what_a_program_sends_elsewhere_*[claude-sdk]",
    f"{_INTEGRATION}test_model_only.py::test_what_a_program_sends_elsewhere_*[codex]",
    # Whole tables and tours, whose rows have tests of their own.
    f"{_INTEGRATION}test_message_table.py::*",
    f"{_INTEGRATION}test_temporal_ui.py::test_a_run_is_started_steered_*",
    f"{_INTEGRATION}test_demo.py::test_a_repository_of_ones_own_*",
    f"{_INTEGRATION}test_bad_input.py::test_every_fault_the_linter_knows_*",
    # How long it goes well what a shorter test shows.
    "tests/soak/test_agents_leaks.py::*",
    f"{_INTEGRATION}test_messages_any_time.py::test_a_storm_of_messages_*",
    f"{_INTEGRATION}test_history_size.py::test_three_hundred_visits_*",
    f"{_INTEGRATION}test_fork.py::test_a_fork_is_forked_when_every_run_before_it_is_gone_from_disk",
    f"{_INTEGRATION}test_developer.py::test_ten_questions_in_a_row_*",
    # Another half of a table whose rows go the same way.
    f"{_INTEGRATION}test_developer.py::test_a_run_is_stopped_while_the_developer_model_decides[*before]",
    f"{_INTEGRATION}test_developer.py::test_a_run_is_stopped_while_the_developer_model_decides[abort-after]",
    f"{_INTEGRATION}test_developer.py::test_without_a_model_to_ask_*[switched-off]",
    f"{_INTEGRATION}test_agents_that_stop.py::test_an_agent_that_failed_is_tried_again_*[crash0]",
    *(f"{_INTEGRATION}test_budget_waits.py::test_an_extension_lets_the_agent_*[{row}]" for row in _EXTENDED),
    *(f"{_INTEGRATION}test_messages.py::test_pause_and_resume_need_no_payload[{row}-*" for row in _EMPTY),
    f"{_INTEGRATION}test_live_runs.py::test_a_call_is_made_only_with_a_persons_consent[late-*]",
    f"{_INTEGRATION}test_developer.py::test_a_decision_that_is_lost_with_its_worker_*[after]",
    f"{_INTEGRATION}test_answered.py::test_an_answer_in_any_form_*[*let go]",
    f"{_INTEGRATION}test_cli_dev.py::test_it_says_where_everything_is_*[1]",
    f"{_INTEGRATION}test_cli_dev.py::test_it_says_where_everything_is_*[15]",
    f"{_INTEGRATION}test_fork.py::test_flow_fix_is_forked_from_its_first_step_*",
)
_FITS: Final = {
    pattern: re.compile(translate(pattern.replace("[", "\0").replace("]", "[]]").replace("\0", "[[]")))
    for pattern in PATTERNS
}


def is_thorough(test: str) -> bool:
    """Tell whether the test with this id is left to ``make thorough``."""
    return any(fits.match(test) for fits in _FITS.values())


def unused(tests: Iterable[str]) -> list[str]:
    """Return the patterns that fit none of these ids."""
    known = list(tests)
    return [pattern for pattern, fits in _FITS.items() if not any(map(fits.match, known))]
