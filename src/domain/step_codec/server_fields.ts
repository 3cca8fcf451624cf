import { type Instant, instantFromParts, isInstant } from '../instant.ts';
import { DamagedStep } from './damaged_step.ts';
import { LABELS_TAIL, STEP, TIMESTAMP } from './tags.ts';
import { WireReader } from './wire_reader.ts';
import { WireWriter } from './wire_writer.ts';
import { type Commit, writeCommit } from './write.ts';

/** The fields that the server adds to a stored step, and where they begin. */
export interface ServerFields {
  /** End of the fields that the client sent. */
  readonly sentTo: number;
  readonly commitTime: Instant;
  readonly writerEpoch: bigint;
  readonly rewardSum: number;
}

/** Reads what `writeCommit` and `writeRewardSum` wrote after the step in bytes [from, to). Errors: DamagedStep. */
export function readServerFields(bytes: Uint8Array, from: number, to: number): ServerFields {
  const input = new WireReader(bytes, from, to);
  skipSent(input);
  const sentTo = input.at;
  input.expect(STEP.commitTime);
  const outer = input.enter();
  const seconds = input.has(TIMESTAMP.seconds) ? input.signed() : 0;
  const nanos = input.has(TIMESTAMP.nanos) ? input.unsigned() : 0;
  input.leave(outer);
  if (!isInstant(seconds, nanos)) throw new DamagedStep('a commit time is out of range');
  const writerEpoch = input.has(STEP.writerEpoch) ? input.long() : 0n;
  const rewardSum = input.has(STEP.rewardSum) ? input.double() : 0;
  input.finish();
  return { sentTo, commitTime: instantFromParts(BigInt(seconds), nanos), writerEpoch, rewardSum };
}

function skipSent(input: WireReader): void {
  if (input.has(STEP.stepNumber)) input.long();
  while (input.has(STEP.actions)) input.skip();
  while (input.has(STEP.observations)) input.skip();
  if (input.has(STEP.reward)) input.double();
  if (input.has(STEP.terminated)) input.bool();
  if (input.has(STEP.truncated)) input.bool();
  for (const tag of [STEP.infoJson, STEP.metadataJson]) if (input.has(tag)) input.skip();
  while (input.has(STEP.metrics)) input.skip();
  for (const tag of [STEP.startTime, STEP.endTime]) if (input.has(tag)) input.skip();
  while (input.has(STEP.states)) input.skip();
  while (input.has(STEP.labels)) {
    input.expect(LABELS_TAIL);
    input.skip();
  }
}

/** Encodes commits as `writeCommit` does. Consecutive steps of one commit share the bytes. */
export class CommitBytes {
  readonly #out = new WireWriter(32);
  #bytes = Buffer.alloc(0);
  #last: Commit | undefined;

  of(commit: Commit): Buffer {
    if (commit !== this.#last) {
      writeCommit(this.#out, commit);
      this.#bytes = Buffer.from(this.#out.take());
      this.#last = commit;
    }
    return this.#bytes;
  }
}
