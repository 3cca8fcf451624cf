import type { Digest } from '../../domain/ids.ts';
import { addReward, contentStates, type NewState, type NewStep } from '../../domain/step.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import { bindActions, bindObservations, type StateSizes } from './content_json.ts';
import type { Engine, Tx } from './engine.ts';
import { type EncodedBytes, encodeBytes } from './state_bytes.ts';
import { bindClientTime, bindDigest, bindMetrics, bindReal, flag, isSet, readDigest } from './values.ts';

/** A state that came inline, ready to be stored. Encoded before the transaction begins, so that no lock waits for compression. */
export interface EncodedState extends EncodedBytes {
  readonly digest: Digest;
  readonly size: number;
}

export function encodeStates(states: readonly NewState[]): EncodedState[] {
  return states.map(({ digest, data }) => ({ digest, size: data.length, ...encodeBytes(data) }));
}

/** Running sums at the step before (see migration 0001), and who writes. */
export interface Sums {
  readonly rewardSum: number;
  readonly byteSum: bigint;
}

export const STEP_COLUMNS = [
  'tree',
  'trajectory',
  'step_number',
  'namespace',
  'reward',
  'terminated',
  'truncated',
  'writer_epoch',
  'reward_sum',
  'byte_sum',
  'commit_time',
  'start_time',
  'end_time',
  'content_digest',
  'metrics',
  'actions',
  'observations',
  'info_json',
  'metadata_json',
] as const;
const STEP_STATE_COLUMNS = [
  'tree',
  'trajectory',
  'step_number',
  'name',
  'namespace',
  'digest',
  'media_type',
  'size',
] as const;
const CONTENT_STATE_COLUMNS = ['tree', 'trajectory', 'step_number', 'digest', 'namespace'] as const;

/** A row's fixed columns, roughly; what counts is that a step is never free. */
const ROW_BYTES = 128;

/** A row of `steps`, and the sums after it. */
export interface StepRow {
  /** In the order of `STEP_COLUMNS`. */
  readonly values: unknown[];
  readonly sums: Sums;
}

export function stepRow(
  namespace: string,
  ref: TrajectoryRef,
  writerEpoch: bigint,
  before: Sums,
  step: NewStep,
  sizes: StateSizes,
  commitTime: string | null,
): StepRow {
  const actions = bindActions(step.actions, sizes);
  const observations = bindObservations(step.observations, sizes);
  const metrics = bindMetrics(step.metrics);
  const rewardSum = addReward(before.rewardSum, step.reward);
  const byteSum =
    before.byteSum +
    BigInt(
      ROW_BYTES +
        Buffer.byteLength(actions) +
        Buffer.byteLength(observations) +
        Buffer.byteLength(metrics) +
        Buffer.byteLength(step.infoJson) +
        Buffer.byteLength(step.metadataJson),
    );
  const values = [
    ref.tree,
    ref.key,
    step.stepNumber,
    namespace,
    step.reward === undefined ? null : bindReal(step.reward),
    flag(step.terminated),
    flag(step.truncated),
    writerEpoch,
    bindReal(rewardSum),
    byteSum,
    commitTime,
    bindClientTime(step.startTime),
    bindClientTime(step.endTime),
    bindDigest(step.contentDigest),
    metrics,
    actions,
    observations,
    step.infoJson,
    step.metadataJson,
  ];
  return { values, sums: { rewardSum, byteSum } };
}

/**
 * Gathers the rows of new steps and their states in one transaction and writes them in few statements. Referring to a state locks its row
 * against collection (S2) and marks it referenced.
 */
export class StepWriter {
  private readonly engine: Engine;
  private readonly tx: Tx;
  private readonly now: string;
  private readonly steps: unknown[][] = [];
  private readonly stepStates: unknown[][] = [];
  private readonly contentStates: unknown[][] = [];
  private readonly namespaces = new Map<string, NamespaceStates>();

  constructor(engine: Engine, tx: Tx, now: string) {
    this.engine = engine;
    this.tx = tx;
    this.now = now;
  }

  /** Looks up and locks states that steps refer to by digest. */
  async resolve(namespace: string, digests: Iterable<Digest>): Promise<void> {
    const states = this.of(namespace);
    const wanted = [...new Set(digests)].filter((digest) => !states.sizes.has(digest)).sort();
    for (const { digest, size, referenced } of await lockStates(this.engine, this.tx, namespace, wanted)) {
      states.sizes.set(digest, size);
      if (!referenced) states.unreferenced.add(digest);
    }
  }

  knows(namespace: string, digest: Digest): boolean {
    return this.namespaces.get(namespace)?.sizes.has(digest) === true;
  }

  /** The first digest a step refers to that is neither here nor among the inline ones. */
  missingState(namespace: string, step: NewStep, inline: ReadonlySet<Digest>): Digest | undefined {
    for (const { digest } of step.states) if (!inline.has(digest) && !this.knows(namespace, digest)) return digest;
    for (const digest of contentStates(step)) if (!inline.has(digest) && !this.knows(namespace, digest)) return digest;
    return undefined;
  }

  /** Takes steps that are decided, in order; gives the sums after them. */
  add(
    namespace: string,
    ref: TrajectoryRef,
    writerEpoch: bigint,
    before: Sums,
    steps: readonly NewStep[],
    inline: readonly EncodedState[],
  ): Sums {
    const states = this.take(namespace, inline);
    let { rewardSum, byteSum } = before;
    for (const step of steps) {
      const row = stepRow(namespace, ref, writerEpoch, { rewardSum, byteSum }, step, states.sizes, this.now);
      ({ rewardSum, byteSum } = row.sums);
      this.steps.push(row.values);
      this.addStates(namespace, states, ref, step);
    }
    return { rewardSum, byteSum };
  }

  /** A state for a step that is stored already (W10). */
  attach(
    namespace: string,
    ref: TrajectoryRef,
    stepNumber: bigint,
    state: NewStep['states'][number],
    inline: readonly EncodedState[],
  ): number {
    const states = this.take(namespace, inline);
    return this.addState(namespace, states, ref, stepNumber, state);
  }

  /** Writes everything: states first, in order of digest so that no two transactions wait for each other in a ring. */
  async write(): Promise<void> {
    for (const [namespace, states] of this.namespaces) {
      await this.insertStates(namespace, states);
      await this.markReferenced(namespace, states);
    }
    await Promise.all([
      this.engine.insertRows(this.tx, 'steps', STEP_COLUMNS, this.steps),
      this.engine.insertRows(this.tx, 'step_states', STEP_STATE_COLUMNS, this.stepStates),
      this.engine.insertRows(this.tx, 'content_states', CONTENT_STATE_COLUMNS, this.contentStates),
    ]);
  }

  private of(namespace: string): NamespaceStates {
    let states = this.namespaces.get(namespace);
    if (states === undefined) {
      states = { sizes: new Map(), inline: new Map(), unreferenced: new Set(), used: new Set() };
      this.namespaces.set(namespace, states);
    }
    return states;
  }

  private take(namespace: string, inline: readonly EncodedState[]): NamespaceStates {
    const states = this.of(namespace);
    for (const state of inline) {
      if (states.sizes.has(state.digest)) continue;
      states.sizes.set(state.digest, state.size);
      states.inline.set(state.digest, state);
    }
    return states;
  }

  private addStates(namespace: string, states: NamespaceStates, ref: TrajectoryRef, step: NewStep): void {
    for (const state of step.states) this.addState(namespace, states, ref, step.stepNumber, state);
    for (const digest of contentStates(step)) {
      states.used.add(digest);
      this.contentStates.push([ref.tree, ref.key, step.stepNumber, bindDigest(digest), namespace]);
    }
  }

  private addState(
    namespace: string,
    states: NamespaceStates,
    ref: TrajectoryRef,
    stepNumber: bigint,
    { name, digest, mediaType }: NewStep['states'][number],
  ): number {
    const size = states.sizes.get(digest);
    if (size === undefined) throw new Error(`state ${digest} was not resolved before its step was written`);
    states.used.add(digest);
    this.stepStates.push([ref.tree, ref.key, stepNumber, name, namespace, bindDigest(digest), mediaType, BigInt(size)]);
    return size;
  }

  private async insertStates(namespace: string, states: NamespaceStates): Promise<void> {
    const fresh = [...states.inline.values()].filter(({ digest }) => states.used.has(digest));
    if (fresh.length === 0) return;
    fresh.sort((a, b) => (a.digest < b.digest ? -1 : 1));
    await this.engine.insertStates(
      this.tx,
      fresh.map((state) => ({ namespace, now: this.now, ...state })),
    );
  }

  private async markReferenced(namespace: string, states: NamespaceStates): Promise<void> {
    const digests = [...states.unreferenced].filter((digest) => states.used.has(digest));
    for (let at = 0; at < digests.length; at += CHUNK) {
      await this.tx
        .updateTable('states')
        .set((eb) => ({ referenced: 1, version: eb('version', '+', 1n) }))
        .where('namespace', '=', namespace)
        .where('digest', 'in', digests.slice(at, at + CHUNK).map(bindDigest))
        .execute();
    }
  }
}

interface NamespaceStates {
  readonly sizes: Map<Digest, number>;
  readonly inline: Map<Digest, EncodedState>;
  readonly unreferenced: Set<Digest>;
  /** Those that a decided step refers to. */
  readonly used: Set<Digest>;
}

interface LockedState {
  readonly digest: Digest;
  readonly size: number;
  readonly referenced: boolean;
}

/** Digests of one statement: engines bound how many parameters one has. */
const CHUNK = 1000;

/** Locks the rows of states that are here, in order of digest, against collection. */
export async function lockStates(
  engine: Engine,
  tx: Tx,
  namespace: string,
  sorted: readonly Digest[],
): Promise<LockedState[]> {
  const locked: LockedState[] = [];
  for (let at = 0; at < sorted.length; at += CHUNK) {
    const query = tx
      .selectFrom('states')
      .select(['digest', 'size', 'referenced'])
      .where('namespace', '=', namespace)
      .where('digest', 'in', sorted.slice(at, at + CHUNK).map(bindDigest))
      .orderBy('digest');
    for (const row of await engine.lock(query, 'write').execute()) {
      locked.push({ digest: readDigest(row.digest), size: Number(row.size), referenced: isSet(row.referenced) });
    }
  }
  return locked;
}
