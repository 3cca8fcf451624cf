import { existsSync, globSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { DescMessage } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { citedRows, comingFrom, ROWS_SHOWN_BY } from './coming_from.ts';
import { registry } from './contract.ts';

/** Every row of the feature list of the three systems, in its order. */
const seedRows = {
  FLE: 'F-01 to F-28, F-30 to F-52',
  CUA: 'C-01 to C-24, C-30 to C-58, C-60',
  SSDB: 'S-01 to S-20, S-30 to S-38',
  faults: 'K-F1 to K-F9, K-C1 to K-C11, K-S1 to K-S7',
};
/** The calls that their users make. */
const seedCalls = {
  FLE: `
    get_db_client create_db_client create_trajectory save_step save_checkpoint get_trajectory
    get_all_trajectories get_task_trajectories get_trajectory_steps get_checkpoint get_latest_checkpoint
    count_steps trajectory_exists delete_trajectory export_all import_all create_program update_program
    get_largest_version get_next_version version_exists get_version_metadata get_resume_state get_beam_heads
    get_beam_stats sample_parent get_all_program_rewards get_largest_depth_in_version execute_query
    get_results_by_version get_results_by_model_and_task get_trajectory_summaries get_model_comparison
    get_task_breakdown get_recent_results resume_sweep
  `,
  CUA: `
    init_database get_session get_session_direct create_training get_training list_trainings
    get_training_by_run_name update_training update_training_progress create_step get_step get_or_create_step
    get_step_by_training_and_step list_steps_by_training update_step get_latest_completed_step create_eval
    get_eval get_or_create_eval get_eval_by_training_and_step list_evals_by_training update_eval create_baseline
    get_baseline list_baselines_by_training update_baseline record_status_change get_status_history
    record_step_start record_step_rollout_start record_step_rollout_progress record_step_rollout_complete
    record_step_training_start record_step_training_progress record_step_completion record_eval_start
    record_eval_progress record_eval_completion record_baseline_start record_baseline_progress
    record_baseline_completion record_step_before_rollout record_step_after_rollout record_step_before_training
    record_step_after_training save_cua_tasks_to_database save_task_to_database load_tasks_from_database
    create_or_get_task get_task_by_task_id list_tasks create_or_get_validator get_validator
    list_validators_by_task create_group get_or_create_group get_group update_group list_groups_by_step
    create_rollout get_rollout_by_rollout_id update_rollout update_rollout_progress list_rollouts_by_step
    list_rollouts_by_task record_rollout_start record_rollout_status record_rollout_completion start_rollout
    update_status complete_rollout start_turn end_turn create_turn record_turn record_turn_start
    record_turn_wrapper get_turn_by_rollout_and_turn list_turns_by_rollout create_action record_action
    list_actions_by_turn create_observation record_observation list_observations_by_turn create_validation
    record_validation get_validation_by_rollout create_environment update_environment record_environment_start
    get_environment_by_rollout save_screenshot_to_file
  `,
  SSDB: `
    init_db create_simulation create_run add_state_to_run branch_from_state complete_run pause_run create_state
    get_state get_run_tree get_lineage get_state_sequence get_state_path get_children get_depth
    get_terminal_states
  `,
};
const SYSTEMS = ['FLE', 'CUA', 'SSDB'] as const;
const rows = [...comingFrom.matchAll(/^\| (K-[FCS]\d+|[FCS]-\d\d) \| (.+?) \| (.+) \|$/gmu)].map(
  ([, id = '', feature = '', home = '']) => ({ id, feature, home }),
);
const ROOT = resolve(import.meta.dirname, '../..');
/** Rows that the title of a test cites. */
const citedInTitles = new Set(
  globSync('test/**/*.test.ts', { cwd: ROOT })
    .flatMap((file) => read(file).match(/\b(?:it|describe\w*)(?:\.each)?\(.*$|^ +(['"`]).*\1,$/gmu) ?? [])
    .flatMap(citedRows),
);
/** Promises and rules; rules.test.ts proves that each has tests. */
const guaranteed = new Set(
  [...`${read('docs/guarantees.md')}${read('docs/rules.md')}`.matchAll(/^(?:\| |### )([A-Z]+\d+)(?: \||\. )/gmu)].map(
    ([, id = '']) => id,
  ),
);
const features = rows.filter(({ id }) => !id.startsWith('K-'));

describe('docs/coming-from.md', () => {
  it.each(SYSTEMS)('starts with the loop of %s, before and after', (system) => {
    const code = new RegExp(
      `^## From ${system}\\n+\\*\\*Before\\*\\*: .+?^\\*\\*After\\*\\*: .+?^<!-- snippet: `,
      'msu',
    );
    expect(comingFrom.split('\n## Appendix\n')[0]).toMatch(code);
  });

  it.each(SYSTEMS)('names every call of %s, in a table with its replacement', (system) => {
    const named = [...comingFrom.matchAll(/^\| (.+) \| .+? \|$/gmu)].map(([, calls = '']) => calls).join('\n');
    const missing = seedCalls[system]
      .trim()
      .split(/\s+/u)
      .filter((call) => !new RegExp(`\\b${call}\\b`, 'u').test(named));
    expect(missing).toEqual([]);
  });

  it('has every row of the three systems, once, in order', () => {
    expect(rows.map((row) => row.id)).toEqual(Object.values(seedRows).flatMap(citedRows));
  });

  it('gives every feature a home: a path of the contract, a page, a later service, or the reason why not', () => {
    const homeless = features.filter(({ home }) => {
      const path = pathsOf(home).length > 0;
      const page = /^here: .*\]\([^)]+\)/u.test(home);
      const later = /\blater: (?:(?:Admin|State)Service|Python SDK)/iu.test(home);
      const declined = /\bdeclined\b.*, because /iu.test(home);
      return !(path || page || later || declined);
    });
    expect(homeless).toEqual([]);
  });

  it('lists nothing without a test: a title cites the row, or the row names existing rules or tests', () => {
    const claims = rows.filter(({ home }) => !/^(?:declined, because|later: )/u.test(home));
    expect(claims.length).toBeGreaterThan(120);
    expect(claims.filter(({ id }) => !citedInTitles.has(id) && ROWS_SHOWN_BY[id] === undefined)).toEqual([]);
    const shown = Object.entries(ROWS_SHOWN_BY);
    expect(shown.filter(([id]) => !rows.some((row) => row.id === id))).toEqual([]);
    const unknown = shown.filter(
      ([, proofs]) => !proofs.every((proof) => guaranteed.has(proof) || existsSync(resolve(ROOT, proof))),
    );
    expect(unknown).toEqual([]);
  });

  it('reads ranges of rows in titles', () => {
    const title = 'F-49, C-07 to C-09: of one of K-S3, K-C1 to K-C2, but not X-F-11 or F-123x';
    expect(citedRows(title)).toEqual(['F-49', 'C-07', 'C-08', 'C-09', 'K-S3', 'K-C1', 'K-C2']);
  });

  it('names only fields and methods that the descriptors have', () => {
    expect(pathsOf(comingFrom).length).toBeGreaterThan(100);
    expect(pathsOf(comingFrom).filter((path) => !isKnown(path))).toEqual([]);
  });

  it('marks nothing as later', () => {
    expect(comingFrom).not.toMatch(/\blater: /u);
  });

  it('uses only existing names of reasons and views', () => {
    const values = new Set(
      [...registry]
        .flatMap((type) => (type.kind === 'enum' ? type.values : []))
        .flatMap((value) => [value.name, value.localName]),
    );
    const named = comingFrom.match(/\b[A-Z]+(?:_[A-Z]+)+\b/gu) ?? [];
    const foreign = /^(?:ANABRANCH_|FLE_|SKILLS_|SQLITE_|POSTGRES_|DATABASE_|CREATE_|CANCEL_PENDING|NOT_FOUND)/u;
    expect(named.filter((name) => !values.has(name) && !foreign.test(name))).toEqual([]);
  });
});

function pathsOf(text: string): string[] {
  return [...text.matchAll(/`(anabranch\.v1\.[\w.]+)`/gu)].map((match) => match[1] ?? '');
}

/** A message, an enum or a service, or `Message.field`, `Service.Method`, `Enum.VALUE`. */
function isKnown(path: string): boolean {
  if (registry.get(path) !== undefined) return true;
  const dot = path.lastIndexOf('.');
  const [owner, member] = [path.slice(0, dot), path.slice(dot + 1)];
  const message: DescMessage | undefined = registry.getMessage(owner);
  return (
    (message?.fields.some((field) => field.name === member) ?? false) ||
    (registry.getService(owner)?.methods.some((method) => method.name === member) ?? false) ||
    (registry.getEnum(owner)?.values.some((value) => value.name === member) ?? false)
  );
}

function read(path: string): string {
  return readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
}
