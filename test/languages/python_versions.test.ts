import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { findPython, type Packages, venvOf } from './python_versions.ts';
import { run } from './run.ts';

const FOLDER = path.resolve(import.meta.dirname, '../../clients/python');
/** Restarts of servers, kills and many rollouts, which depend less on the version than they cost. */
const LONG = [
  'test_faults.py::test_nothing_is_lost_when_the_client_is_killed',
  'test_recorder.py::test_steps_survive_restarts_of_the_server',
  'test_aio.py::test_200_rollouts_at_once_keep_their_turns_apart',
];
/** One of each kind: `npm run test:python` runs all of them on the default Python. */
const TESTS = [
  ...dose<string[]>([], LONG),
  'test_recorder.py::test_tags_follow_their_steps',
  'test_recorder.py::test_large_values_become_states_and_read_back',
  'test_faults.py::test_the_end_of_the_program_sends_what_waits',
  'test_faults.py::test_a_forked_child_records_its_own_trajectories',
  'test_faults.py::test_a_package_that_imports_grpc_first_does_not_break_forks[closed]',
  'test_faults.py::test_a_package_that_imports_grpc_first_does_not_break_forks[open]',
  'test_recorder.py::test_processes_get_clients_by_pickling',
  'test_spool.py::test_records_are_read_back_in_order',
  'test_episodes.py::test_arrays_have_the_lengths_t_plus_1_t_t',
  'test_episodes.py::test_small_states_come_with_their_steps_in_no_call_of_their_own',
  'test_tokens.py::test_a_rejected_step_keeps_its_tokens',
  'test_tokens.py::test_logprobs_beyond_a_step_are_stored_apart_and_read_back[step]',
  'test_turns.py::test_a_prompt_is_sent_as_what_it_adds_to_the_context',
  'test_termination.py::test_sigterm_cancels_the_trajectory_of_a_block',
  'test_aio.py::test_a_trainer_and_a_worker_play_a_run',
  'test_aio.py::test_a_rollout_must_be_started_before_its_first_step',
  'test_aio.py::test_an_exception_fails_and_a_cancelled_task_cancels_a_trajectory',
  'test_aio.py::test_recording_needs_no_server_and_a_cancelled_flush_ends',
];
/** All tests of these files, of which some have many cases. */
const FILES = ['test_spool.py', 'test_values.py'];

/** The usual dose takes the two ends of what is supported; `npm run test:python` runs on the default Python. */
const RUNS: readonly (readonly [version: string, packages: Packages])[] = [
  ['3.10', 'lowest'],
  ['3.13', 'highest'],
  ...dose<[string, Packages][]>(
    [],
    [
      ['3.12', 'highest'],
      ['3.13', 'lowest'],
    ],
  ),
];

describe('the Python client records and reads', () => {
  for (const [version, packages] of RUNS)
    it(`on Python ${version} with the ${packages} versions of its dependencies`, { timeout: 600_000 }, async ({
      skip,
    }) => {
      const python = (await findPython(version)) ?? skip(`this machine has no Python ${version}`);
      const own = await venvOf(python, version, packages);
      const tests = [...TESTS, ...FILES].map((name) => path.join('tests', name));
      const options = { cwd: FOLDER, minutes: 8 };
      const printed = await run(own, ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', ...tests], options);
      const passed = Number(/^(\d+) passed/mu.exec(printed)?.[1]);
      expect(passed).toBeGreaterThan(TESTS.length + 70);
      expect(printed).not.toMatch(/\d+ (?:failed|error|skipped)/u);
    });
});
