import { asSent } from '../../../../domain/pruning.ts';
import { StepFrames } from '../../../../domain/step_codec/frames.ts';
import { readStep } from '../../../../domain/step_codec/read.ts';
import { readServerFields } from '../../../../domain/step_codec/server_fields.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { encodedStep } from '../../log/read/stored_segment.ts';
import { type AttachedToStep, type StepChunk, StepsDigest, stepChunks } from './step_chunks.ts';

/** Steps of an archive with what was attached to them. */
type StepsOfPart = Pick<StepChunk, 'first' | 'bytes' | 'ends' | 'attached'>;

/** Compares the steps of an archive with those that are stored of the trajectory. */
export class StoredComparison {
  readonly #scope: ReadScope;
  readonly #ref: TrajectoryRef;
  readonly #digest = new StepsDigest();

  constructor(scope: ReadScope, ref: TrajectoryRef) {
    this.#scope = scope;
    this.#ref = ref;
  }

  /**
   * Returns the first step that is stored otherwise or not at all, with what was attached to it. States that were
   * attached or pruned on one side only are no difference.
   */
  async firstDifference({ first, bytes, ends, attached }: StepsOfPart): Promise<bigint | undefined> {
    const next = first + BigInt(ends.length);
    const stored = new Map<string, AttachedToStep>();
    let at = first;
    for await (const chunk of stepChunks(this.#scope, this.#ref, first, next)) {
      this.#digest.add(chunk);
      let begin = 0;
      for (const end of chunk.ends) {
        const index = Number(at - first);
        const sent = bytes.subarray(index === 0 ? 0 : ends[index - 1]!, ends[index]!);
        if (!isSameStep(chunk.bytes.subarray(begin, end), sent)) return at;
        begin = end;
        at += 1n;
      }
      for (const each of chunk.attached) stored.set(`${each.stepNumber} ${each.state.name}`, each);
    }
    if (at < next) return at;
    const other = attached.find(({ stepNumber, state: { name, digest, mediaType } }) => {
      const found = stored.get(`${stepNumber} ${name}`)?.state;
      return found?.digest !== digest || found.mediaType !== mediaType;
    });
    return other?.stepNumber;
  }

  /** Returns the digest of the stored steps. */
  finish(): string {
    return this.#digest.finish();
  }
}

/** Whether two steps with their length are the same but for what retention removed of them (S13). */
function isSameStep(one: Uint8Array, other: Uint8Array): boolean {
  return Buffer.compare(one, other) === 0 || Buffer.compare(withoutMarksIn(one), withoutMarksIn(other)) === 0;
}

function withoutMarksIn(frame: Uint8Array): Uint8Array {
  const frames = new StepFrames(frame);
  frames.next();
  const { sentTo } = readServerFields(frame, frames.from, frames.to);
  const sent = encodedStep(asSent(readStep(frame, frames.from, sentTo)));
  return Buffer.concat([sent, frame.subarray(sentTo, frames.to)]);
}
