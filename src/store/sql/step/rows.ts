import { sql } from 'kysely';
import { type Instant, parseInstant } from '../../../domain/instant.ts';
import type { StateRef, StoredStep } from '../../../domain/step.ts';
import { isSet, readMetrics, readOptionalReal, readOptionalTime, readReal } from '../values.ts';
import { readActions, readObservations } from './content_json.ts';

/** Columns of every view, except the number. */
export const BASIC = sql`s.reward, s.terminated, s.truncated, s.writer_epoch, s.reward_sum, s.commit_time, s.start_time, s.end_time, s.metrics`;
/** Columns of the FULL view that can be large. Empty text is read as null, which costs nothing. */
export const PAYLOAD = sql`s.actions, s.observations, nullif(s.info_json, ''), nullif(s.metadata_json, '')`;
export const FULL = sql`${BASIC}, ${PAYLOAD}`;

/**
 * A step: its number relative to the page, the id of its owner at the first step of each owner, and the values of BASIC
 * or FULL in order.
 */
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
  infoJson?: string | null,
  metadataJson?: string | null,
];

const NO_STATES: readonly StateRef[] = [];

/** Reads steps one after another. Steps of one commit share their time, which is parsed once. */
export class StepReader {
  #timeText = '';
  #time: Instant = 0n;

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
      infoJson,
      metadataJson,
    ] = row;
    return {
      stepNumber,
      actions: actions === undefined ? [] : readActions(actions),
      observations: observations === undefined ? [] : readObservations(observations),
      reward: readOptionalReal(reward),
      terminated: isSet(terminated),
      truncated: isSet(truncated),
      infoJson: infoJson ?? '',
      metadataJson: metadataJson ?? '',
      metrics: readMetrics(metrics),
      startTime: readOptionalTime(startTime),
      endTime: readOptionalTime(endTime),
      states,
      commitTime: this.#timeOf(commitTime),
      writerEpoch: BigInt(writerEpoch),
      rewardSum: readReal(rewardSum),
    };
  }

  #timeOf(text: string): Instant {
    if (text !== this.#timeText) {
      this.#time = parseInstant(text);
      this.#timeText = text;
    }
    return this.#time;
  }
}

/** A state of a step: the number as in `StepRow`, and the digest as text. */
export type StateRow = readonly [number: number, name: string, digest: string, mediaType: string, size: number];

export function readStateRef([, name, digest, mediaType, size]: StateRow): StateRef {
  return { name, digest, mediaType, size };
}
