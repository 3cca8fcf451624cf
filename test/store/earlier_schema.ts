import { migration0018 } from '../../src/store/migrations/0018_segments.ts';
import { restoreSmallStates } from './former_small_states.ts';
import { restoreStateRefs } from './former_state_refs.ts';
import { restoreFormerSteps } from './former_steps.ts';
import type { OutsideSql } from './sql.ts';

/** The lengths of rows that are not compressed stay in `body_bytes`: the migration sets the same ones. */
async function dropStorageCounts(sql: OutsideSql): Promise<void> {
  const events = ['insert', 'delete', 'update'];
  const triggers = ['segments', 'state_refs', 'attached_states', 'states', 'state_chunks'].flatMap((table) => {
    return events.map((event) => ({ table, name: `${table}_counted_${event}` }));
  });
  for (const { table, name } of [...triggers, { table: 'trajectories', name: 'trajectories_uncounted' }]) {
    await sql.rows(`drop trigger if exists ${name}${sql.engine === 'postgres' ? ` on ${table}` : ''}`);
  }
  const functions = ['segment', 'references', 'data', 'attached', 'change_of_data'].map((name) => `count_${name}`);
  for (const name of sql.engine === 'postgres' ? [...functions, 'uncount_trajectory'] : []) {
    await sql.rows(`drop function ${name}`);
  }
  await sql.rows('drop index trajectories_uncounted');
  await sql.rows('alter table trajectories drop column counted');
  await sql.rows('drop table storage_counts');
}

async function dropStateNameIndex(sql: OutsideSql): Promise<void> {
  for (const event of ['insert', 'delete', 'update']) {
    await sql.rows(`drop trigger segments_named_${event}${sql.engine === 'postgres' ? ' on segments' : ''}`);
  }
  if (sql.engine === 'postgres') await sql.rows('drop function name_segment');
  await sql.rows('drop table segment_state_names');
  await sql.rows('alter table trajectories drop column named_to');
}

/**
 * Statements that revert each migration, by name, in the order of migrations. Data that a migration created are
 * dropped.
 */
const UNDO = {
  '0006_branch_depth': ['alter table trajectories drop column depth'],
  '0007_purging': [
    'drop index trajectories_purging',
    'drop index trajectories_trimming',
    'alter table trajectories drop column purging',
    'alter table trajectories drop column trimming',
  ],
  '0008_watched_changes': [
    'drop index groups_by_run',
    'drop index groups_by_mark',
    'create index groups_by_mark on groups (run, mark)',
    'drop index rollouts_by_mark',
    'create index rollouts_by_mark on rollouts (run, mark)',
  ],
  '0009_right_answers': [
    'alter table groups drop column tried_rollouts',
    'alter table stages drop column end_expected_turns',
    'alter table stages drop column end_expected_substeps',
    'alter table stages drop column end_share',
  ],
  '0010_trajectories_without_run': ['drop index trajectories_without_run'],
  '0011_attempts': [
    'alter table attempts drop column metrics',
    'alter table attempts drop column timings',
    'alter table attempts drop column result_success',
    'alter table attempts drop column validation_passed',
    'alter table attempts drop column override',
    'alter table attempts drop column success',
    'alter table attempts drop column reward',
    'alter table attempts drop column turns',
    'alter table attempts drop column claimable_time',
    'alter table attempts drop column start_time',
    'alter table attempts drop column end_digest',
    'alter table rollouts drop column claimable_time',
    'alter table rollouts drop column first_given',
    'alter table validation_overrides drop column attempt',
    'drop table rollout_environments',
    `create table rollout_environments (rollout bigint not null, environment bigint not null, namespace text not null,
      primary key (rollout, environment))`,
    'create index rollout_environments_by_environment on rollout_environments (environment)',
  ],
  '0012_attempt_timing': [
    'alter table runs drop column pauses',
    'drop index rollouts_queue',
    'drop index rollouts_queue_by_task',
    `create index rollouts_queue on rollouts (stage, priority desc, key) where status = 'PENDING'`,
    `create index rollouts_queue_by_task on rollouts (stage, task, priority desc, key) where status = 'PENDING' and task is not null`,
    'alter table rollouts drop column attempt_timeout_ms',
    'alter table rollouts drop column retry_delay_ms',
    'alter table rollouts drop column refunded_attempts',
    'alter table rollouts drop column attempt_end_time',
    'alter table rollouts drop column paused_us',
  ],
  '0013_queue_close_time': ['alter table stages drop column queue_close_time'],
  '0014_rollout_lists': [
    'drop table rollout_cancellations',
    'drop index rollouts_by_task',
    'drop index attempts_by_worker',
  ],
  '0015_removed_config_paths': ['alter table runs drop column removed_config_paths'],
  '0016_branch_reward_sum': ['alter table trajectories drop column branch_reward_sum'],
  // The primary key changes, which SQLite does not support. On Postgres its name is free only once the table is
  // dropped.
  '0017_named_validations': [
    'create table kept_validations as select * from validations where validator is not null',
    'drop table validations',
    `create table validations (rollout bigint not null, attempt bigint not null default 0, validator bigint not null, namespace text not null,
      advisory boolean not null, success boolean not null, query text not null, expected_result text not null, actual_result text not null,
      execution_ms bigint, error_message text not null, details_json text not null, record_time timestamptz not null,
      primary key (rollout, attempt, validator))`,
    `insert into validations select rollout, attempt, validator, namespace, advisory, success, query, expected_result, actual_result, execution_ms,
      error_message, details_json, record_time from kept_validations`,
    'drop table kept_validations',
  ],
  // Also restores the rows.
  '0018_segments': restoreFormerSteps,
  '0019_reward_bounds': [
    'drop index segments_by_reward',
    ...['segments', 'trajectories'].flatMap((table) => [
      `alter table ${table} drop column min_reward`,
      `alter table ${table} drop column max_reward`,
    ]),
  ],
  '0020_small_states': restoreSmallStates,
  '0021_state_bases': async (sql: OutsideSql) => {
    const [deltas] = await sql.rows('select count(*) as n from states where base is not null');
    if (Number(deltas?.n) > 0) throw new Error('states with a base cannot be stored in the former schema');
    await sql.rows('drop index states_by_base');
    await sql.rows('drop index states_collected');
    for (const column of ['base', 'depth', 'base_bytes', 'collected'])
      await sql.rows(`alter table states drop column ${column}`);
  },
  // Rows must not have been merged.
  '0022_merged_segments': async (sql: OutsideSql) => {
    await sql.rows('drop view steps');
    for (const column of ['commits', 'last_commit_time', 'encoding', 'body_bytes', 'states_bytes'])
      await sql.rows(`alter table segments drop column ${column}`);
    await sql.rows('alter table trajectories drop column merged_to');
    const [view] = /create view steps as[^;]*/u.exec(migration0018[sql.engine])!;
    await sql.rows(view);
  },
  '0023_shared_pieces': async (sql: OutsideSql) => {
    const [references] = await sql.rows('select count(*) as n from state_chunks where piece_upload is not null');
    if (Number(references?.n) > 0) throw new Error('shared pieces cannot be stored in the former schema');
    await sql.rows('drop index state_chunks_by_piece');
    await sql.rows('alter table state_chunks drop column piece_upload');
  },
  '0024_step_scores': ['drop table step_scores', 'alter table trajectories drop column scored_metrics'],
  '0025_created_by_open': [
    'drop table deleted_trajectories',
    'alter table trajectories drop column create_digest',
    'alter table trajectories drop column created_by_open',
  ],
  '0027_step_labels': ['alter table segments drop column labels'],
  '0030_state_refs': restoreStateRefs,
  '0033_expiring_ids': ['drop index deleted_trajectories_by_time'],
  '0034_trajectory_imports': ['drop table trajectory_imports'],
  '0035_pruned_states': ['alter table attached_states drop column pruned_time'],
  '0036_retention_policies': ['drop table retention_policies'],
  '0037_attach_time': ['alter table attached_states drop column attach_time'],
  '0038_storage_counts': dropStorageCounts,
  '0039_labelled_segments': ['drop index segments_with_labels'],
  '0040_state_name_index': dropStateNameIndex,
} as const;

/**
 * Reverts the database of a closed store to the schema before a migration, so that opening it migrates the stored data.
 */
export async function undoMigrations(sql: OutsideSql, first: keyof typeof UNDO): Promise<void> {
  const names = Object.keys(UNDO).filter((name) => name >= first) as (keyof typeof UNDO)[];
  // One commit instead of one for each statement.
  await sql.rows('begin');
  for (const name of names.reverse()) {
    const undo = UNDO[name];
    if (typeof undo === 'function') await undo(sql);
    else for (const statement of undo) await sql.rows(statement);
    await sql.rows(`delete from kysely_migration where name = '${name}'`);
  }
  await sql.rows('commit');
}
