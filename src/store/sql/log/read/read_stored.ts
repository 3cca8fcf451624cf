import { type CompiledQuery, type RawBuilder, sql } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import type { AttachedState, StateRef } from '../../../../domain/step.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { OwnedStep } from '../../../contract/step.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import type { Segment } from './segment.ts';
import { columnOfSegment } from './segment_lookup.ts';
import type { StoredStates } from './stored_body.ts';

export interface OwnedSegment {
  readonly owner: OwnedStep['owner'];
  readonly segment: Segment;
  /** The bytes of its small states. Undefined unless they were requested. */
  readonly small?: StoredStates;
}

/** States that were attached to steps (W10), by owner and step number. Undefined if there are none. */
export type AttachedStates = ReadonlyMap<string, readonly AttachedState[]> | undefined;

export function attachedTo(
  states: AttachedStates,
  owner: bigint,
  stepNumber: bigint,
): readonly AttachedState[] | undefined {
  return states?.get(tupleKey(owner, stepNumber));
}

/** A query of segments and of the states that were attached to their steps. */
interface StoredQuery {
  /** Step numbers are read relative to this one, because they may exceed 2^53. Default 0. */
  readonly from?: bigint;
  /** Common table expressions that both parts use, or nothing. */
  readonly beginning: RawBuilder<unknown>;
  /** The end of a select from `segments` as `s` and their `trajectories` as `o`. */
  readonly segments: RawBuilder<unknown>;
  /** The end of a select from `attached_states` as `a`. */
  readonly attached: RawBuilder<unknown>;
  /** Also read the bytes of small states. Default false. */
  readonly withStates?: boolean;
}

/** The end of a select of the states that were attached to steps of the ranges `g`. */
export function attachedIn(engine: Pick<Engine, 'sql'>, namespace: string): RawBuilder<unknown> {
  return sql`from g
    cross join ${engine.sql.table('attached_states')} as a
    where a.tree = g.tree and a.trajectory = g.key and a.step_number >= g.lo and a.step_number < g.hi
      and a.namespace = ${namespace}`;
}

export type StoredRow =
  | [
      first: number,
      next: number,
      key: number,
      ownerId: string,
      epoch: number,
      ...SegmentColumns,
      null,
      null,
      states: Uint8Array | null,
      statesBytes: number | null,
    ]
  | [
      stepNumber: number,
      null,
      key: number,
      name: string,
      size: number,
      prunedTime: string | null,
      attachTime: string,
      ...NoSegment,
      mediaType: string,
      digest: string,
      data: Uint8Array | null,
      null,
    ];
type SegmentColumns = [
  commitTime: string,
  commits: string | null,
  rewardSum: number | string,
  checksum: number,
  encoding: number,
  bodyBytes: number | null,
  body: Uint8Array,
];
type NoSegment = [null, null, null, null, null];

/**
 * Selects segments in order of step number, and the states that were attached to their steps. One statement reads both:
 * whatever is deleted meanwhile, no step lacks its states.
 */
export function selectStored(
  engine: Pick<Engine, 'sql'>,
  { from = 0n, beginning, segments, attached, withStates = false }: StoredQuery,
): RawBuilder<StoredRow> {
  return sql`${beginning}
    select s.first_step_number - ${from}, s.next_step_number - ${from}, s.trajectory, cast(o.id as text), s.writer_epoch,
      s.commit_time, s.commits, s.reward_sum, s.checksum, s.encoding, s.body_bytes, s.body, null, null, ${withStates ? sql`s.states, s.states_bytes` : sql`null, null`}
    ${segments}
    union all
    select a.step_number - ${from}, null, a.trajectory, a.name, a.size, a.pruned_time, cast(a.attach_time as text), null, null, null, null, null, a.media_type, ${engine.sql.hex(sql`a.digest`)}, ${withStates ? sql`a.data` : sql`null`}, null
    ${attached}
    order by 1`;
}

/** Reads what `selectStored` selects, with the same `from`. */
export async function readStored(
  engine: Pick<Engine, 'reads'>,
  query: RawBuilder<StoredRow> | CompiledQuery<StoredRow>,
  from = 0n,
): Promise<{ readonly segments: OwnedSegment[]; readonly attached: AttachedStates }> {
  const rows = await engine.reads.rows<StoredRow>(query);
  const found: OwnedSegment[] = [];
  let states: Map<string, AttachedState[]> | undefined;
  for (const row of rows) {
    const number = from + BigInt(row[0]);
    const key = BigInt(row[2]);
    if (row[1] === null) {
      const [, , , name, size, pruned, attached, , , , , , mediaType, digest, data] = row;
      const place = tupleKey(key, number);
      states ??= new Map();
      const there = states.get(place) ?? [];
      // The ranges of a list can overlap, if segments were merged since it found them.
      if (there.every((state) => state.name !== name)) {
        states.set(place, [
          ...there,
          { name, digest, mediaType, size, ...bytesOrMark(data, pruned), attachTime: parseInstant(attached) },
        ]);
      }
      continue;
    }
    const [
      ,
      next,
      ,
      id,
      epoch,
      commit_time,
      commits,
      reward_sum,
      checksum,
      encoding,
      bodyBytes,
      body,
      ,
      ,
      small,
      smallBytes,
    ] = row;
    const segment = {
      first_step_number: number,
      next_step_number: from + BigInt(next),
      writer_epoch: BigInt(epoch),
      commit_time,
      commits,
      reward_sum,
      checksum: BigInt(checksum),
      encoding: BigInt(encoding),
      body_bytes: bodyBytes === null ? null : BigInt(bodyBytes),
      body,
    };
    const owned = { owner: { key, id }, segment };
    const states_bytes = smallBytes === null ? null : BigInt(smallBytes);
    found.push(small === null ? owned : { ...owned, small: { states: small, states_bytes } });
  }
  return { segments: found, attached: states };
}

function bytesOrMark(data: Uint8Array | null, pruned: string | null): Pick<StateRef, 'data' | 'prunedTime'> {
  if (pruned !== null) return { prunedTime: parseInstant(pruned) };
  return data === null ? {} : { data };
}

/** Selects the segments of a trajectory that have own steps of [from, to), in order. */
export function segmentsOver(
  { engine, db }: { readonly engine: Pick<Engine, 'sql'>; readonly db: Db },
  { tree, key: trajectory }: TrajectoryRef,
  from: bigint,
  to: bigint,
) {
  const first = columnOfSegment(engine, 'first_step_number', { tree, trajectory, stepNumber: from });
  return (
    db
      .selectFrom('segments as s')
      .select(['s.first_step_number', 's.next_step_number', 's.writer_epoch', 's.commit_time', 's.reward_sum'])
      .select(['s.commits', 's.checksum', 's.encoding', 's.body_bytes', 's.body'])
      .where('s.tree', '=', tree)
      .where('s.trajectory', '=', trajectory)
      .where('s.first_step_number', '<', to)
      .where('s.next_step_number', '>', from)
      // The range of the index begins at the segment that has `from`.
      .where('s.first_step_number', '>=', sql<bigint>`coalesce(${first}, 0)`)
      .orderBy('s.first_step_number')
  );
}
