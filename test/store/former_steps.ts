import { formatInstant } from '../../src/domain/instant.ts';
import type { Action, Content, Observation } from '../../src/domain/step.ts';
import { stepDigest } from '../../src/domain/step_digest.ts';
import type { ActionJson, ContentJson, ObservationJson } from '../../src/store/migrations/segments/former_content.ts';
import { compareCodeUnits } from '../../src/store/migrations/segments/former_steps.ts';
import { PLAIN } from '../../src/store/sql/step/stored_body.ts';
import { SegmentCursor, type StoredSegment } from '../../src/store/sql/step/stored_segment.ts';
import { bindMetrics } from '../../src/store/sql/values.ts';
import type { OutsideSql } from './sql.ts';

const COLUMNS = `tree bigint not null, trajectory bigint not null, step_number bigint not null, namespace text not null, reward REAL,
  terminated BOOL not null, truncated BOOL not null, writer_epoch bigint not null, reward_sum REAL not null, byte_sum bigint not null,
  commit_time TIME not null, start_time text, end_time text, content_digest BYTES not null, metrics text not null, actions text not null,
  observations text not null, info_json text not null, metadata_json text not null, primary key (tree, trajectory, step_number)`;

const TYPES = {
  sqlite: { REAL: '', BOOL: 'integer', TIME: 'text', BYTES: 'blob' },
  postgres: { REAL: 'double precision', BOOL: 'boolean', TIME: 'timestamptz', BYTES: 'bytea' },
} as const;

/** Turns segments back into the rows of the table `steps` before migration 18. */
export async function restoreFormerSteps(sql: OutsideSql): Promise<void> {
  const stored = await sql.rows(
    'select *, cast(commit_time as text) as commit_text from segments order by tree, trajectory, first_step_number',
  );
  await sql.rows('drop view steps');
  const columns = COLUMNS.replace(/[A-Z]{4,}/g, (name) => TYPES[sql.engine][name as keyof (typeof TYPES)['sqlite']]);
  await sql.rows(`create table steps (${columns})`);
  for (const row of stored) await sql.rows(`insert into steps values ${formerRows(sql.engine, row).join()}`);
  await sql.rows('drop table segments');
  await sql.rows('drop table attached_states');
  await sql.rows('alter table trajectories drop column timed_turns');
  await sql.rows('alter table trajectories drop column turn_seconds');
}

function formerRows(engine: OutsideSql['engine'], row: Record<string, unknown>): string[] {
  const commitTime = `${row.commit_text}`;
  const segment: StoredSegment = {
    first_step_number: BigInt(`${row.first_step_number}`),
    next_step_number: BigInt(`${row.next_step_number}`),
    writer_epoch: BigInt(`${row.writer_epoch}`),
    commit_time: commitTime,
    commits: null,
    reward_sum: row.reward_sum as number | string,
    checksum: BigInt(`${row.checksum}`),
    encoding: PLAIN,
    body_bytes: null,
    body: row.body as Uint8Array,
  };
  const rows: string[] = [];
  for (const steps = new SegmentCursor(segment); steps.next(); ) {
    const step = steps.read('FULL');
    const flag = (set: boolean) => (engine === 'sqlite' ? (set ? '1' : '0') : `${set}`);
    const digest = stepDigest(step, compareCodeUnits);
    const values = [
      row.tree,
      row.trajectory,
      step.stepNumber,
      text(row.namespace),
      real(engine, step.reward),
      flag(step.terminated),
      flag(step.truncated),
      segment.writer_epoch,
      real(engine, steps.rewardSum),
      (step.stepNumber + 1n) * 200n,
      text(commitTime),
      step.startTime === undefined ? 'null' : text(formatInstant(step.startTime)),
      step.endTime === undefined ? 'null' : text(formatInstant(step.endTime)),
      engine === 'sqlite' ? `x'${digest}'` : `'\\x${digest}'`,
      text(bindMetrics(step.metrics)),
      text(bindActions(step.actions)),
      text(bindObservations(step.observations)),
      text(step.infoJson),
      text(step.metadataJson),
    ];
    rows.push(`(${values.join(', ')})`);
  }
  return rows;
}

function text(value: unknown): string {
  return `'${`${value}`.replaceAll("'", "''")}'`;
}

function real(engine: OutsideSql['engine'], value: number | undefined): string {
  if (value === undefined) return 'null';
  if (Number.isNaN(value)) return "'NaN'";
  if (Object.is(value, -0)) return engine === 'sqlite' ? '-0.0' : "float8 '-0'";
  if (Number.isFinite(value)) return `${value}`;
  const infinity = engine === 'sqlite' ? '9e999' : "float8 'Infinity'";
  return value > 0 ? infinity : `-${infinity}`;
}

function bindActions(actions: readonly Action[]): string {
  if (actions.length === 0) return '[]';
  return JSON.stringify(
    actions.map((action): ActionJson => {
      const json: ActionJson = {};
      if (action.type !== '') json.type = action.type;
      if (action.name !== '') json.name = action.name;
      if (action.callId !== '') json.call_id = action.callId;
      if (action.content !== undefined) json.content = contentToJson(action.content);
      if (action.tokenIds.length > 0) json.token_ids_i32 = pack(Int32Array.from(action.tokenIds));
      if (action.logprobs.length > 0) json.logprobs_f32 = pack(Float32Array.from(action.logprobs));
      return json;
    }),
  );
}

function bindObservations(observations: readonly Observation[]): string {
  if (observations.length === 0) return '[]';
  return JSON.stringify(
    observations.map((observation): ObservationJson => {
      const json: ObservationJson = {};
      if (observation.type !== '') json.type = observation.type;
      if (observation.callId !== '') json.call_id = observation.callId;
      if (observation.isError) json.is_error = true;
      if (observation.content !== undefined) json.content = contentToJson(observation.content);
      return json;
    }),
  );
}

function contentToJson(content: Content): ContentJson {
  switch (content.kind) {
    case 'text':
      return { text: content.text };
    case 'json':
      return { json: content.json };
    case 'data':
      return { data: Buffer.from(content.data).toString('base64'), media_type: content.mediaType };
    case 'state':
      return { state: content.digest, size: content.size, media_type: content.mediaType };
    case 'uri':
      return { uri: content.uri, media_type: content.mediaType };
    case 'tensor':
      throw new Error('former steps have no tensors');
  }
}

function pack(numbers: Int32Array | Float32Array): string {
  return Buffer.from(numbers.buffer).toString('base64');
}
