import { type Instant, parseInstant } from '../../domain/instant.ts';
import type { StateRef, StoredStep } from '../../domain/step.ts';
import { readActions, readObservations } from './content_json.ts';
import { isSet, readDigest, readMetrics, readOptionalTime, readReal } from './values.ts';

/** The columns of a step that every view shows. */
export const BASIC_COLUMNS = [
  'trajectory',
  'step_number',
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
export const PAYLOAD_COLUMNS = ['actions', 'observations', 'info_json', 'metadata_json'] as const;

export interface BasicRow {
  trajectory: bigint;
  step_number: bigint;
  reward: number | string | null;
  terminated: boolean | bigint;
  truncated: boolean | bigint;
  writer_epoch: bigint;
  reward_sum: number | string;
  commit_time: string;
  start_time: string | null;
  end_time: string | null;
  metrics: string;
}

export interface PayloadRow {
  actions: string;
  observations: string;
  info_json: string;
  metadata_json: string;
}

export interface StateRow {
  trajectory: bigint;
  step_number: bigint;
  name: string;
  digest: Uint8Array;
  media_type: string;
  size: bigint;
}

const NO_STATES: readonly StateRef[] = [];

/** Reads steps one after another; those that were committed together bear the same time, which is read once. */
export class StepReader {
  private timeText = '';
  private time: Instant = 0n;

  read(row: BasicRow & Partial<PayloadRow>, states: readonly StateRef[] = NO_STATES): StoredStep {
    if (row.commit_time !== this.timeText) {
      this.time = parseInstant(row.commit_time);
      this.timeText = row.commit_time;
    }
    return readStep(row, states, this.time);
  }
}

function readStep(row: BasicRow & Partial<PayloadRow>, states: readonly StateRef[], commitTime: Instant): StoredStep {
  return {
    stepNumber: row.step_number,
    actions: row.actions === undefined ? [] : readActions(row.actions),
    observations: row.observations === undefined ? [] : readObservations(row.observations),
    reward: row.reward === null ? undefined : readReal(row.reward),
    terminated: isSet(row.terminated),
    truncated: isSet(row.truncated),
    infoJson: row.info_json ?? '',
    metadataJson: row.metadata_json ?? '',
    metrics: readMetrics(row.metrics),
    startTime: readOptionalTime(row.start_time),
    endTime: readOptionalTime(row.end_time),
    states,
    commitTime,
    writerEpoch: row.writer_epoch,
    rewardSum: readReal(row.reward_sum),
  };
}

export function readStateRef(row: StateRow): StateRef {
  return { name: row.name, digest: readDigest(row.digest), mediaType: row.media_type, size: Number(row.size) };
}
