import {
  type AppendDecision,
  decideAppend,
  fencesAnother,
  type Head,
  requireWritable,
} from '../../../../domain/append.ts';
import type { Caller } from '../../../../domain/caller.ts';
import { trajectoryHint } from '../../../../domain/change.ts';
import { AnabranchError, trajectoryNotFound } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import type { TrajectoryStatus } from '../../../../domain/lifecycle.ts';
import { ownerOf, rangesOf } from '../../../../domain/lineage.ts';
import { rowStates } from '../../../../domain/step_codec/packed_step.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { AppendBatch, AppendOutcome } from '../../../contract/append.ts';
import type { LockedHead } from '../../kit/engine.ts';
import { type Sums, sumColumns } from '../../kit/running_sums.ts';
import { type RecordedMove, recordStatuses } from '../../kit/status/status_changes.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { TAGS } from '../../kit/tables/trajectories.ts';
import { inOneRoundTrip, type Transaction, write } from '../../kit/transaction.ts';
import { readOptionalTime } from '../../kit/values.ts';
import type { AppendsEngine } from '../engine.ts';
import { rangesOver } from '../read/number_ranges.ts';
import { segmentsOver } from '../read/read_stored.ts';
import { SegmentCursor } from '../read/segment.ts';
import type { EncodedState } from '../states/bytes.ts';
import type { StateEncoder } from '../states/encoder.ts';
import { ReferredStates } from '../states/referred_states.ts';
import { getLineage } from '../trajectory/lineage.ts';
import { appendToKnown } from './append_known.ts';
import { CompressedSegments, compressedByTrajectory, withCompressedSteps } from './compressed_segments.ts';
import { fullSegmentsOf } from './full_segments.ts';
import { GRANT_UPDATE, HEAD_UPDATE, type HeadRow, headOf, inLockOrder } from './heads.ts';
import { StepWriter, sizesOf } from './writer.ts';

/** A stored step that a batch repeats. */
interface RepeatedStep {
  /** Its encoding. */
  readonly bytes: Uint8Array;
  readonly commitTime: Instant;
}

/** A locked trajectory while its batches are decided. */
interface GroupMember {
  /** The locked row, with the epoch that was granted last. */
  locked: LockedHead;
  readonly head: Head;
  sums: Sums;
  sealTime: string | null;
  statusBefore: TrajectoryStatus;
  changed: boolean;
  granted: boolean;
  /** Set by a rejected batch. Later batches of the trajectory that are not independent are rejected with it. */
  refusal: AnabranchError | undefined;
  /** Steps of tags that the batches set. */
  readonly tags: Map<string, bigint>;
  /** Stored steps that the batches repeat, and steps appended in this group, by step number. */
  readonly stored: Map<bigint, RepeatedStep>;
}

export async function append(
  engine: AppendsEngine,
  encoder: StateEncoder,
  batches: readonly AppendBatch[],
  wait: 'never' | 'bounded',
): Promise<AppendOutcome[]> {
  const full = fullSegmentsOf(batches);
  const compressed = full.length === 0 ? undefined : await CompressedSegments.make(engine.compressor, full);
  const outcomes = await appendToKnown(engine, batches, compressed);
  if (outcomes !== undefined) return outcomes.map((outcome) => outcome ?? APART);
  return encoder.store(engine, batches, async (inline) => {
    const { outcomes, changed } = await write(engine, (tx) => appendIn(tx, batches, { inline, compressed, wait }));
    engine.changes.announce(changed.map(trajectoryHint));
    return outcomes;
  });
}

const APART: AppendOutcome = { kind: 'apart' };

interface DecidedGroup {
  readonly outcomes: AppendOutcome[];
  /** Trajectories to announce after the commit. */
  readonly changed: readonly bigint[];
}

interface GroupOptions {
  /** Inline states of the batches. */
  readonly inline: readonly (readonly EncodedState[])[];
  /** Copies of segments that may be written. */
  readonly compressed?: CompressedSegments | undefined;
  readonly wait: 'never' | 'bounded';
}

/** Decides batches and writes what they append, in a transaction. After its commit, the heads are cached. */
export async function appendIn(
  tx: Transaction<AppendsEngine>,
  batches: readonly AppendBatch[],
  { inline, compressed, wait }: GroupOptions,
): Promise<DecidedGroup> {
  const { known } = tx.engine;
  const refs = uniqueRefs(batches);
  const referred = new ReferredStates(tx);
  const [heads] = await inOneRoundTrip([tx.lockHeads(refs, wait), findStates(referred, batches)]);
  const busy = wait === 'never' && heads.length < refs.length ? await stillThere(tx, refs, heads) : new Set<bigint>();
  const members = new Map(heads.map((locked) => [locked.key, newMember(locked)]));
  const writer = new StepWriter(tx, referred, { encoder: known.encoder, compressed });
  const group = new Group(tx, members, busy, writer);
  await group.prepare(batches);
  const outcomes = batches.map((batch, i) => group.decide(batch, inline[i] ?? []));
  await group.write(batches, wait === 'never' ? 'briefly' : 'bounded');
  tx.afterCommit(() => {
    for (const member of members.values()) {
      if (member.locked.hidden) known.remove(member.locked.key);
      else if (member.changed || member.granted) known.learn(member);
    }
    for (const { key } of refs) if (!members.has(key) && !busy.has(key)) known.remove(key);
    known.recent.add(writer.rows);
  });
  const changed = [...members.values()].filter((member) => member.changed);
  return { outcomes: group.withCompressed(batches, outcomes), changed: changed.map(({ locked }) => locked.key) };
}

class Group {
  readonly #tx: Transaction;
  readonly #nowInstant: Instant;
  readonly #members: Map<bigint, GroupMember>;
  readonly #busy: ReadonlySet<bigint>;
  readonly #writer: StepWriter;
  readonly #sealed: { caller: Caller; member: GroupMember }[] = [];

  constructor(tx: Transaction, members: Map<bigint, GroupMember>, busy: ReadonlySet<bigint>, writer: StepWriter) {
    this.#tx = tx;
    this.#nowInstant = members.size === 0 ? 0n : parseInstant(tx.now);
    this.#members = members;
    this.#busy = busy;
    this.#writer = writer;
  }

  /** Reads the stored steps that batches repeat. Most groups repeat none. */
  async prepare(batches: readonly AppendBatch[]): Promise<void> {
    for (const batch of batches) {
      const member = this.#members.get(batch.ref.key);
      if (member === undefined) continue;
      const { nextStepNumber } = member.locked;
      if (batch.steps.some((step) => step.stepNumber < nextStepNumber)) await this.#loadRepeated(batch, member);
    }
  }

  decide(batch: AppendBatch, inline: readonly EncodedState[]): AppendOutcome {
    if (this.#busy.has(batch.ref.key)) return { kind: 'busy' };
    const member = this.#members.get(batch.ref.key);
    if (member === undefined || !isOf(batch, member.locked))
      return { kind: 'refused', error: trajectoryNotFound(batch.trajectoryId) };
    if (member.refusal !== undefined && batch.independent !== true) return { kind: 'refused', error: member.refusal };
    try {
      return this.#accept(batch, inline, member);
    } catch (error) {
      if (!(error instanceof AnabranchError)) throw error;
      member.refusal = error;
      return { kind: 'refused', error };
    }
  }

  #accept(batch: AppendBatch, inline: readonly EncodedState[], member: GroupMember): AppendOutcome {
    const { head, locked } = member;
    const { namespace, actor } = batch.caller;
    requireWritable(locked.namespace === namespace ? locked : undefined, batch.trajectoryId, batch.uid);
    const before = { ...head };
    const decision = decideAppend(head, batch, (number) => member.stored.get(number)?.bytes);
    const fault = this.#faultOf(namespace, decision, inline);
    if (fault !== undefined) {
      Object.assign(head, before);
      throw fault;
    }
    if (decision.epoch !== undefined) {
      member.locked = { ...locked, writerId: head.writerId, writerEpoch: decision.epoch, writerActor: actor };
      member.granted = true;
    }
    member.sums = this.#writer.add(member.locked, member.sums, decision.appended, inline);
    for (const { stepNumber, bytes } of decision.appended) {
      member.stored.set(stepNumber, { bytes, commitTime: this.#nowInstant });
    }
    for (const { name, stepNumber } of batch.tags) if (stepNumber >= before.end) member.tags.set(name, stepNumber);
    if (decision.seal === 'sealed') {
      member.sealTime = this.#tx.now;
      this.#sealed.push({ caller: batch.caller, member });
    }
    member.changed ||= decision.appended.length > 0 || decision.seal === 'sealed';
    return {
      kind: 'committed',
      nextStepNumber: head.end,
      uid: locked.uid,
      epoch: decision.epoch,
      tookOver: decision.epoch !== undefined && fencesAnother(locked, actor),
      commitTime: this.#commitTime(batch, decision, member),
      duplicates: decision.duplicates,
      status: head.status,
      statusMessage: head.statusMessage,
      sealTime: readOptionalTime(member.sealTime),
    };
  }

  /** Returns the commit time of the newest step or seal in the batch. A replay returns the original time. */
  #commitTime({ steps, seal }: AppendBatch, { appended }: AppendDecision, member: GroupMember): Instant {
    if (appended.length > 0) return this.#nowInstant;
    if (seal !== undefined && member.sealTime !== null) return parseInstant(member.sealTime);
    let newest: Instant | undefined;
    for (const { stepNumber } of steps) {
      const time = member.stored.get(stepNumber)?.commitTime;
      if (time !== undefined && (newest === undefined || time > newest)) newest = time;
    }
    return newest ?? this.#nowInstant;
  }

  async write(batches: readonly AppendBatch[], wait: 'briefly' | 'bounded'): Promise<void> {
    if (batches.length === 0) return;
    const grants = [...this.#members.values()].filter(({ granted }) => granted).map(({ locked }) => grantRow(locked));
    if (grants.length > 0) await this.#tx.engine.bulk.update(this.#tx.db, GRANT_UPDATE, grants);
    const heads = [...this.#members.values()].filter((member) => member.changed).map((member) => this.#headRow(member));
    if (heads.length === 0) return;
    await this.#writer.write(wait);
    await this.#tx.engine.bulk.update(this.#tx.db, HEAD_UPDATE, heads);
    const tags = [...this.#members.values()].flatMap((member) => this.#tagRows(member));
    if (tags.length > 0) await this.#tx.engine.bulk.insert(this.#tx.db, TAGS, tags, MOVE_TAG);
    if (this.#sealed.length === 0) return;
    const seals = this.#sealed.map(({ caller, member: { locked, head } }): RecordedMove => {
      const entity = { tree: locked.tree, noun: 'TRAJECTORY', key: locked.key } as const;
      return { caller, entity, move: { ordinal: 1n, from: 'RUNNING', to: head.status, message: head.statusMessage } };
    });
    await recordStatuses(this.#tx, seals);
  }

  /** Returns the outcomes of written batches with their compressed steps. */
  withCompressed(batches: readonly AppendBatch[], outcomes: AppendOutcome[]): AppendOutcome[] {
    const rows = compressedByTrajectory(this.#writer.rows);
    if (rows.size === 0) return outcomes;
    return outcomes.map((outcome, i) => withCompressedSteps(outcome, batches[i]!, rows.get(batches[i]!.ref.key)));
  }

  #faultOf(namespace: string, decision: AppendDecision, inline: readonly EncodedState[]): AnabranchError | undefined {
    const here = sizesOf(inline);
    for (const step of decision.appended) {
      const fault = this.#writer.faultOf(namespace, step, here);
      if (fault !== undefined) return fault;
    }
    return undefined;
  }

  #headRow({ locked, head, sums, sealTime }: GroupMember): HeadRow {
    return {
      tree: locked.tree,
      key: locked.key,
      next_step_number: head.end,
      ...sumColumns(sums),
      status: head.status,
      status_message: head.statusMessage,
      update_time: this.#tx.now,
      seal_time: sealTime,
    };
  }

  #tagRows({ locked: { tree, key, namespace }, tags }: GroupMember): RowOf<typeof TAGS>[] {
    if (tags.size === 0) return NO_TAGS;
    const update_time = this.#tx.now;
    return [...tags].map(([name, step_number]) => ({
      tree,
      trajectory: key,
      name,
      namespace,
      step_number,
      update_time,
    }));
  }

  /** Loads the stored steps that a batch repeats. The lineage finds the owners of inherited steps. */
  async #loadRepeated(batch: AppendBatch, member: GroupMember): Promise<void> {
    const numbers = batch.steps.map((step) => step.stepNumber).filter((n) => n < member.locked.nextStepNumber);
    const wanted = numbers.filter((n) => !member.stored.has(n));
    if (wanted.length === 0) return;
    const owned = wanted.filter((n) => n >= member.locked.ownBegin);
    await this.#loadFrom(member, member.locked.key, owned);
    const inherited = wanted.filter((n) => n < member.locked.ownBegin);
    if (inherited.length === 0) return;
    const first = inherited.reduce((least, n) => (n < least ? n : least));
    const chain = await getLineage(this.#tx.in(batch.caller.namespace), member.locked, first);
    const lineage = rangesOf(chain, member.locked.ownBegin);
    for (const [owner, owned] of Map.groupBy(inherited, (n) => ownerOf(lineage, n))) {
      if (owner !== undefined) await this.#loadFrom(member, owner, owned);
    }
  }

  async #loadFrom(member: GroupMember, owner: bigint, numbers: readonly bigint[]): Promise<void> {
    for (const { from, to } of rangesOver(numbers)) {
      const ref = { tree: member.locked.tree, key: owner };
      for (const segment of await segmentsOver(this.#tx, ref, from, to).execute()) {
        for (const steps = new SegmentCursor(segment); steps.next() && steps.stepNumber < to; ) {
          const { stepNumber } = steps;
          if (stepNumber < from) continue;
          member.stored.set(stepNumber, { bytes: steps.bytes, commitTime: steps.commit.commitTime });
        }
      }
    }
  }
}

/** After a failover that lost commits, a row key can be that of another trajectory. */
function isOf({ trajectoryId, caller }: AppendBatch, { id, namespace }: LockedHead): boolean {
  return id === trajectoryId && namespace === caller.namespace;
}

function grantRow({ tree, key, writerId, writerEpoch, writerActor }: LockedHead) {
  return { tree, key, writer_id: writerId, writer_epoch: writerEpoch, writer_actor: writerActor };
}

const NO_TAGS: RowOf<typeof TAGS>[] = [];

/** The row of a trajectory is locked, so no other transaction sets its tags. */
const MOVE_TAG = ` on conflict (tree, trajectory, name) do update
  set step_number = excluded.step_number, update_time = excluded.update_time`;

function newMember(locked: LockedHead): GroupMember {
  return {
    locked,
    head: headOf(locked),
    sums: locked.sums,
    sealTime: locked.sealTime,
    statusBefore: locked.status,
    changed: false,
    granted: false,
    refusal: undefined,
    tags: new Map(),
    stored: new Map(),
  };
}

/** Looks up the states that the batches refer to. */
async function findStates(referred: ReferredStates, batches: readonly AppendBatch[]): Promise<void> {
  const digests = new Map<string, Set<Digest>>();
  for (const { caller, steps } of batches) {
    for (const step of steps) {
      const referred = rowStates(step);
      if (referred.length === 0) continue;
      for (const digest of referred) {
        const ofNamespace = digests.get(caller.namespace) ?? new Set<Digest>();
        digests.set(caller.namespace, ofNamespace.add(digest));
      }
    }
  }
  await Promise.all([...digests].map(([namespace, wanted]) => referred.find(namespace, wanted)));
}

function uniqueRefs(batches: readonly AppendBatch[]): TrajectoryRef[] {
  const refs = new Map<bigint, TrajectoryRef>();
  for (const { ref } of batches) refs.set(ref.key, ref);
  return [...refs.values()].sort(inLockOrder);
}

/** Returns the keys of unlocked rows that exist, because another transaction holds them. */
export async function stillThere(
  tx: Transaction,
  refs: readonly TrajectoryRef[],
  heads: readonly LockedHead[],
): Promise<Set<bigint>> {
  const locked = new Set(heads.map(({ key }) => key));
  const missing = refs.filter(({ key }) => !locked.has(key));
  const rows = await tx.db
    .selectFrom('trajectories')
    .select('key')
    .where(
      'tree',
      'in',
      missing.map(({ tree }) => tree),
    )
    .where(
      'key',
      'in',
      missing.map(({ key }) => key),
    )
    .execute();
  return new Set(rows.map(({ key }) => key));
}
