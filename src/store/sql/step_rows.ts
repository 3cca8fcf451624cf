import { type RawBuilder, sql } from 'kysely';
import { type Instant, parseInstant } from '../../domain/instant.ts';
import type { StateRef, StoredStep } from '../../domain/step.ts';
import { readActions, readObservations } from './content_json.ts';
import { isSet, readMetrics, readOptionalTime, readReal } from './values.ts';

/** The columns of a step that every view shows, beside its number. */
const BASIC_COLUMNS = [
  'reward',
  'terminated',
  'truncated',
  'writer_epoch',
  'reward_sum',
  'commit_time',
  'start_time',
  'end_time',
  'metrics',
] as const;

/** What the FULL view adds: the columns that can be large. */
const PAYLOAD_COLUMNS = ['actions', 'observations', 'info_json', 'metadata_json'] as const;

export const BASIC = columnList(BASIC_COLUMNS);
export const PAYLOAD = columnList(PAYLOAD_COLUMNS);
export const FULL = columnList([...BASIC_COLUMNS, ...PAYLOAD_COLUMNS]);

function columnList(columns: readonly string[]): RawBuilder<unknown> {
  return sql.join(columns.map((column) => sql.ref(`s.${column}`)));
}

/** A step: its number, counted from where the page begins, its owner's id where another one begins, and the values of BASIC or FULL in their order. */
export type StepRow = readonly [
  number: number,
  ownerId: string | null,
  reward: number | string | null,
  terminated: boolean | number,
  truncated: boolean | number,
  writerEpoch: number,
  rewardSum: number | string,
  commitTime: string,
  startTime: string | null,
  endTime: string | null,
  metrics: string,
  actions?: string,
  observations?: string,
  infoJson?: string,
  metadataJson?: string,
];

const NO_STATES: readonly StateRef[] = [];

/** Reads steps one after another; those that were committed together bear the same time, which is read once. */
export class StepReader {
  private timeText = '';
  private time: Instant = 0n;

  read(stepNumber: bigint, row: StepRow, states: readonly StateRef[] = NO_STATES): StoredStep {
    const [
      ,
      ,
      reward,
      terminated,
      truncated,
      writerEpoch,
      rewardSum,
      commitTime,
      startTime,
      endTime,
      metrics,
      actions,
      observations,
      infoJson = '',
      metadataJson = '',
    ] = row;
    return {
      stepNumber,
      actions: actions === undefined ? [] : readActions(actions),
      observations: observations === undefined ? [] : readObservations(observations),
      reward: reward === null ? undefined : readReal(reward),
      terminated: isSet(terminated),
      truncated: isSet(truncated),
      infoJson,
      metadataJson,
      metrics: readMetrics(metrics),
      startTime: readOptionalTime(startTime),
      endTime: readOptionalTime(endTime),
      states,
      commitTime: this.timeOf(commitTime),
      writerEpoch: BigInt(writerEpoch),
      rewardSum: readReal(rewardSum),
    };
  }

  private timeOf(text: string): Instant {
    if (text !== this.timeText) {
      this.time = parseInstant(text);
      this.timeText = text;
    }
    return this.time;
  }
}

/** A state of a step: its number as in `StepRow`, its digest as text. */
export type StateRow = readonly [number: number, name: string, digest: string, mediaType: string, size: number];

export function readStateRef([, name, digest, mediaType, size]: StateRow): StateRef {
  return { name, digest, mediaType, size };
}
