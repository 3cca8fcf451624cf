import { randomUUID } from 'node:crypto';
import { AnabranchError } from '../../src/domain/errors.ts';
import { type OwnedRange, rangesOf } from '../../src/domain/lineage.ts';
import type { Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { AppendBatch, AppendOutcome } from '../../src/store/contract/append.ts';
import type { IdempotencyKey } from '../../src/store/contract/request.ts';
import type { OwnedStep, StepView } from '../../src/store/contract/step.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { NewBranch, NewEndBranch, NewTrajectory, OnBranches } from '../../src/store/contract/trajectory.ts';
import { packed } from '../support/packed_steps.ts';
import { sha256, wordStep } from '../support/steps.ts';

export type Committed = Extract<AppendOutcome, { kind: 'committed' }>;

/**
 * One namespace of a store, new unless named, with short forms of calls that tests make often. Every call goes through
 * the contract.
 */
export class Scene {
  readonly store: Store;
  readonly caller: { readonly namespace: string; readonly actor: string };

  constructor(store: Store, namespace: string = randomUUID()) {
    this.store = store;
    this.caller = { namespace, actor: 'tester' };
  }

  get namespace(): string {
    return this.caller.namespace;
  }

  create(fields: GivenTrajectory = {}, key?: IdempotencyKey): Promise<Trajectory> {
    return this.store.createTrajectory(this.caller, newTrajectory(fields), key);
  }

  /** Creates a trajectory with one step for each word. */
  async createWith(words: readonly string[], fields: GivenTrajectory = {}): Promise<Trajectory> {
    const made = await this.create(fields);
    if (words.length > 0) await this.appendWords(made, words);
    return this.get(made.id);
  }

  branch(source: { readonly id: string }, at: bigint | string, fields: Partial<NewBranch> = {}, key?: IdempotencyKey) {
    const { name = '', labels = new Map(), metadataJson = '', id = randomUUID(), uid = randomUUID() } = fields;
    const { scoredMetrics = [] } = fields;
    const point = typeof at === 'string' ? { tag: at } : { stepNumber: at };
    const { taskId } = fields;
    const newBranch = { id, uid, name, labels, metadataJson, scoredMetrics, taskId, sourceId: source.id, at: point };
    return this.store.branchTrajectory(this.caller, newBranch, key);
  }

  async get(id: string): Promise<Trajectory> {
    const found = await this.store.getTrajectory(this.namespace, id);
    if (found === undefined) throw new Error(`trajectory ${id} was not found`);
    return found;
  }

  isThere(id: string): Promise<boolean> {
    return this.store.getTrajectory(this.namespace, id).then((found) => found !== undefined);
  }

  delete(trajectory: { readonly id: string }, onBranches: OnBranches = 'REFUSE') {
    return this.store.deleteTrajectory(this.namespace, trajectory.id, onBranches);
  }

  /** Opens for writing. Returns the epoch. */
  async open(trajectory: Trajectory, writerId = 'w', takeOverEpoch?: bigint): Promise<bigint> {
    const open = { trajectoryId: trajectory.id, uid: undefined, writerId, expectedNextStepNumber: undefined };
    return (await this.store.openForAppend(this.caller, { ...open, takeOverEpoch })).epoch;
  }

  batch(trajectory: Trajectory, steps: readonly Step[], fields: Partial<AppendBatch> = {}): AppendBatch {
    return {
      caller: this.caller,
      ref: trajectory.ref,
      trajectoryId: trajectory.id,
      uid: undefined,
      writerEpoch: undefined,
      steps: steps.map(packed),
      seal: undefined,
      states: [],
      tags: [],
      ...fields,
    };
  }

  /** Appends a single batch. A refusal is thrown. */
  async append(trajectory: Trajectory, steps: readonly Step[], fields: Partial<AppendBatch> = {}): Promise<Committed> {
    const [outcome] = await this.store.append([this.batch(trajectory, steps, fields)], 'bounded');
    return committed(outcome);
  }

  /** Appends batches, and again those that were left apart. Returns an outcome for each. */
  async appendAll(batches: readonly AppendBatch[], wait: 'never' | 'bounded' = 'never'): Promise<AppendOutcome[]> {
    const outcomes = await this.store.append(batches, wait);
    const apart = batches.filter((_, i) => outcomes[i]!.kind === 'apart');
    const others = apart.length === 0 ? [] : await this.appendAll(apart, wait);
    return outcomes.map((outcome) => (outcome.kind === 'apart' ? others.shift()! : outcome));
  }

  /** Appends one step for each word, at the current end. */
  async appendWords(trajectory: Trajectory, words: readonly string[], fields: Partial<AppendBatch> = {}) {
    const { nextStepNumber } = await this.get(trajectory.id);
    const steps = words.map((word, i) => wordStep(nextStepNumber + BigInt(i), word));
    return this.append(trajectory, steps, fields);
  }

  seal(trajectory: Trajectory, status: 'COMPLETED' | 'FAILED' | 'CANCELLED' = 'COMPLETED', message = '') {
    return this.append(trajectory, [], { seal: { status, message } });
  }

  /** The current ranges of the lineage of a trajectory. */
  async lineage(trajectory: { readonly id: string }): Promise<OwnedRange[]> {
    const { ref, nextStepNumber } = await this.get(trajectory.id);
    return rangesOf(await this.store.getLineage(this.namespace, ref), nextStepNumber);
  }

  /** All steps of a trajectory, read in pages of at most `pageSize`. */
  async steps(trajectory: { readonly id: string }, view: StepView = 'FULL', pageSize = 1000): Promise<OwnedStep[]> {
    const { ref, nextStepNumber } = await this.get(trajectory.id);
    const lineage = rangesOf(await this.store.getLineage(this.namespace, ref), nextStepNumber);
    const all: OwnedStep[] = [];
    for (let from = 0n; from < nextStepNumber; ) {
      const range = { from, to: nextStepNumber, maxSteps: pageSize, maxBytes: 1024 * 1024 };
      const page = await this.store.readSteps(this.namespace, ref.tree, lineage, range, view);
      if (page.length === 0) throw new Error(`steps ${from} to ${nextStepNumber} of ${trajectory.id} are missing`);
      all.push(...page);
      from = (page.at(-1) as OwnedStep).step.stepNumber + 1n;
    }
    return all;
  }

  /** The words of all its steps. Checks that the numbers have no gap (O1). */
  async words(trajectory: { readonly id: string }): Promise<string[]> {
    const steps = await this.steps(trajectory);
    return steps.map(({ step }, i) => {
      if (step.stepNumber !== BigInt(i))
        throw new Error(`step ${i} of ${trajectory.id} is numbered ${step.stepNumber}`);
      return wordOf(step);
    });
  }
}

/** A trajectory to create, with its root as a step. */
/** A branch at the end of a trajectory, as it was read. */
export function endBranch(source: Trajectory): NewEndBranch {
  const fields = { name: '', labels: new Map(), metadataJson: '', taskId: 'branches' };
  return { id: randomUUID(), uid: randomUUID(), source, ...fields };
}

export type GivenTrajectory = Partial<Omit<NewTrajectory, 'root'>> & { readonly root?: Step | undefined };

export function newTrajectory({ root, ...fields }: GivenTrajectory = {}): NewTrajectory {
  return {
    id: randomUUID(),
    uid: randomUUID(),
    name: '',
    labels: new Map(),
    metadataJson: '',
    taskId: '',
    runId: undefined,
    experimentId: undefined,
    root: root && packed(root),
    states: [],
    ...fields,
  };
}

export function wordOf({ actions }: Pick<OwnedStep['step'], 'actions'>): string {
  const content = actions[0]?.content;
  return content?.kind === 'text' ? content.text : '';
}

export function committed(outcome: AppendOutcome | undefined): Committed {
  if (outcome?.kind === 'refused') throw outcome.error;
  if (outcome?.kind !== 'committed') throw new Error(`the batch was ${outcome?.kind ?? 'not answered'}`);
  return outcome;
}

/** Returns the refusal of a call. Any other result fails the test. */
export async function refusalOf(call: Promise<unknown>): Promise<AnabranchError> {
  try {
    await call;
  } catch (error) {
    if (error instanceof AnabranchError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

/** Reads a state from the given offset to its end. */
export async function readWhole(store: Store, namespace: string, digest: string, offset = 0): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for (let at = offset; ; ) {
    const piece = await store.readState(namespace, digest, at);
    if (piece.length === 0) return Buffer.concat(pieces);
    pieces.push(piece);
    at += piece.length;
  }
}

/** Uploads a state in chunks. Returns its digest. */
export async function putState(
  store: Store,
  namespace: string,
  bytes: Uint8Array,
  chunkBytes = 256 * 1024,
  base?: string,
): Promise<string> {
  const upload = store.putState(namespace, base);
  for (let at = 0; at < bytes.length; at += chunkBytes) await upload.write(bytes.subarray(at, at + chunkBytes));
  const digest = sha256(bytes);
  await upload.finish();
  return digest;
}
