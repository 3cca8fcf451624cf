import type { Selectable, SqlBool } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import { PRUNABLE_STEP_BYTES, withAttached } from '../../../../domain/pruning.ts';
import type { StepFacts } from '../../../../domain/retention.ts';
import { type Content, isKept, type Step } from '../../../../domain/step.ts';
import { SmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import type { Tables } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { isSet, readDigest } from '../../kit/values.ts';
import { segmentsOver } from '../../log/read/read_stored.ts';
import { SegmentCursor } from '../../log/read/segment.ts';
import { bytesOf, readStates } from '../../log/read/stored_body.ts';

/** A state of a step, or of one of its contents. */
export interface StateFacts {
  /** Of a state of the step; empty for one of a content. */
  readonly name: string;
  /** Of a content. Empty for items of tensors and for tokens. */
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
  /** Bytes that the state takes in the segment of its step. Undefined if it has a row of its own. */
  readonly storedHere: number | undefined;
}

/** An own step with the states that can be read, and what it takes. */
export interface SizedFacts extends StepFacts {
  readonly states: readonly StateFacts[];
  readonly bytes: number;
  readonly storedBytes: number;
}

/** Segments of one statement. Each has at most about 64 KiB of steps, or one step. */
const ROWS = 8;

/**
 * Returns the own steps of [from, to) of a trajectory, in order, a few segments at a time. Leaves out damaged segments,
 * and steps that are too large to be marked (S13), unless `all` steps are requested.
 */
export async function* readFacts(
  scope: ReadScope,
  ref: TrajectoryRef,
  [from, to]: readonly [bigint, bigint],
  { all }: { readonly all: boolean },
): AsyncGenerator<readonly SizedFacts[], void, undefined> {
  for (let at = from; at < to; ) {
    if (at > from) await nextIteration();
    const { rows, attached } = await readRows(scope, ref, at, to);
    const last = rows.at(-1);
    if (last === undefined) return;
    const facts: SizedFacts[] = [];
    for (const row of rows) {
      await scope.engine.slots.take(scope.namespace);
      const found = factsOf(row, attached);
      facts.push(...found.filter(({ stepNumber }) => stepNumber >= at && stepNumber < to));
    }
    yield all ? facts : facts.filter(({ bytes }) => bytes <= PRUNABLE_STEP_BYTES);
    at = last.next_step_number;
  }
}

type Attached = ReadonlyMap<bigint, readonly (StateFacts & { readonly isPruned: boolean })[]>;

/** Reads some segments, and the states that were attached to them. */
async function readRows(
  scope: ReadScope,
  ref: TrajectoryRef,
  from: bigint,
  to: bigint,
): Promise<{ readonly rows: readonly SegmentRow[]; readonly attached: Attached }> {
  const { engine, db, namespace } = scope;
  const segments = segmentsOver(scope, ref, from, to).limit(ROWS);
  const ends = db.selectFrom(segments.clearSelect().select('s.next_step_number as end').as('r'));
  const added = db
    .selectFrom('attached_states')
    .select(['step_number', 'name', 'digest', 'size', 'pruned_time'])
    .select(({ eb }) => eb('data', 'is not', null).as('is_small'))
    .where('tree', '=', ref.tree)
    .where('trajectory', '=', ref.key)
    .where('step_number', '>=', from)
    .where(
      'step_number',
      '<',
      ends.select(({ fn }) => fn.max('r.end').as('end')),
    )
    .where('namespace', '=', namespace);
  const [rows, attached] = await engine.reads.snapshot([segments.selectAll('s').compile(), added.compile()]);
  return { rows: rows as readonly SegmentRow[], attached: factsOfAttached(attached) };
}

type AttachedRow = Pick<
  Selectable<Tables['attached_states']>,
  'step_number' | 'name' | 'digest' | 'size' | 'pruned_time'
> & {
  readonly is_small: SqlBool;
};

function factsOfAttached(rows: readonly AttachedRow[]): Attached {
  const facts = rows.map(({ step_number, name, digest, size, pruned_time, is_small }) => ({
    stepNumber: step_number,
    isPruned: pruned_time !== null,
    name,
    mediaType: '',
    digest: readDigest(digest),
    size: Number(size),
    storedHere: isSet(is_small) ? Number(size) : undefined,
  }));
  return Map.groupBy(facts, ({ stepNumber }) => stepNumber);
}

function factsOf(row: SegmentRow, attached: Attached): SizedFacts[] {
  const plain = readStates(row);
  const small = new SmallStates(plain);
  const stateShare = plain.length === 0 ? 0 : row.states.length / plain.length;
  const stepShare = row.body.length / Math.max(bytesOf(row), 1);
  const facts: SizedFacts[] = [];
  try {
    for (const at = new SegmentCursor(row); at.next(); ) {
      const step = at.read('FULL');
      const sent = step.states.map((state) => {
        const here = small.next(state.size);
        return { ...state, storedHere: here && (here.length + 1) * stateShare };
      });
      const added = (attached.get(at.stepNumber) ?? []).map(({ isPruned, ...state }) => {
        return { ...state, prunedTime: isPruned ? 0n : undefined };
      });
      const named = withAttached(sent, added).filter(isKept);
      const states = [
        ...named.map(({ name, digest, size, storedHere }) => ({ name, mediaType: '', digest, size, storedHere })),
        ...contentsOf(step),
      ];
      facts.push({
        stepNumber: at.stepNumber,
        commitTime: at.commit.commitTime,
        isTerminal: step.terminated || step.truncated,
        names: named.map(({ name }) => name),
        mediaTypes: states.flatMap(({ mediaType }) => (mediaType === '' ? [] : [mediaType])),
        states,
        bytes: at.frameBytes,
        storedBytes: at.frameBytes * stepShare,
      });
    }
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STEP_CORRUPT') return [];
    throw error;
  }
  return facts;
}

function contentsOf(step: Step): StateFacts[] {
  const contents = [...step.actions, ...step.observations].map(({ content }) => content);
  return contents.flatMap((content: Content | undefined) => {
    if (content?.kind !== 'state' || !isKept(content)) return [];
    const { mediaType, digest, size } = content;
    return [{ name: '', mediaType, digest, size, storedHere: undefined }];
  });
}
