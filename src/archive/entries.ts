import { archiveInvalid } from '../domain/archive.ts';
import type { NewState } from '../domain/step.ts';
import { DamagedStep } from '../domain/step_codec/damaged_step.ts';
import { StepFrames } from '../domain/step_codec/frames.ts';
import { STATE } from '../domain/step_codec/tags.ts';
import { WireReader } from '../domain/step_codec/wire_reader.ts';
import { WireWriter } from '../domain/step_codec/wire_writer.ts';

/** Entries of tar files, as far as archives use them: regular files with short names (POSIX ustar). */
export const BLOCK = 512;

export interface TarEntry {
  /** With slashes, and at most 100 bytes after the last one that fits. */
  readonly name: string;
  readonly size: number;
}

/** The checksum is computed as if its field had spaces. */
const CHECKSUM = { from: 148, to: 156 } as const;

/**
 * Returns the block before the content of an entry. Equal entries have equal blocks: they have no time and no owner.
 */
export function writeHeader({ name, size }: TarEntry): Uint8Array {
  const block = Buffer.alloc(BLOCK);
  const slash = name.length > 100 ? name.lastIndexOf('/') : -1;
  block.write(name.slice(slash + 1), 0, 100, 'latin1');
  block.write('0000644\0', 100, 'latin1');
  for (const at of [108, 116]) block.write('0000000\0', at, 'latin1');
  block.write(`${size.toString(8).padStart(11, '0')}\0`, 124, 'latin1');
  block.write('00000000000\0', 136, 'latin1');
  block.write('0', 156, 'latin1');
  block.write('ustar\u000000', 257, 'latin1');
  if (slash > 0) block.write(name.slice(0, slash), 345, 155, 'latin1');
  block.write(`${checksumOf(block).toString(8).padStart(6, '0')}\0 `, CHECKSUM.from, 'latin1');
  return block;
}

function checksumOf(block: Uint8Array): number {
  let sum = 0;
  for (const [i, byte] of block.entries()) sum += i >= CHECKSUM.from && i < CHECKSUM.to ? 0x20 : byte;
  return sum;
}

/** Returns the entry of a block, `end` for a block of zeros, or what is wrong with the block. */
export function readHeader(block: Buffer): TarEntry | 'end' | { readonly fault: string } {
  if (block.every((byte) => byte === 0)) return 'end';
  if (block.toString('latin1', 257, 262) !== 'ustar') return { fault: 'it is no header of a tar file' };
  if (octal(block, CHECKSUM.from, CHECKSUM.to) !== checksumOf(block)) return { fault: 'its checksum is wrong' };
  if (block[156] !== 0x30) return { fault: 'it is no regular file' };
  const size = octal(block, 124, 136);
  if (size === undefined) return { fault: 'its size is no number' };
  const [name, prefix] = [textIn(block, 0, 100), textIn(block, 345, 500)];
  return { name: prefix === '' ? name : `${prefix}/${name}`, size };
}

function octal(block: Buffer, from: number, to: number): number | undefined {
  const digits = /^ *([0-7]+)[ \0]*$/.exec(block.toString('latin1', from, to));
  return digits === null ? undefined : Number.parseInt(digits[1]!, 8);
}

function textIn(block: Buffer, from: number, to: number): string {
  const end = block.indexOf(0, from);
  return block.toString('latin1', from, end === -1 || end > to ? to : end);
}

/** Encodes states as messages `StepState` with data and digest, each after its length. */
export function writeSmallStates(states: readonly NewState[]): Uint8Array {
  const out = new WireWriter(states.reduce((bytes, { data }) => bytes + data.length + MORE_BYTES, 0));
  const message = new WireWriter(8192);
  for (const { digest, data } of states) {
    message.bytes(STATE.data, data);
    message.text(STATE.digest, digest);
    out.delimitedFrom(message);
  }
  return out.finish();
}

/** At most as many bytes are added to the data: two tags and lengths, a digest, and the length of the message. */
const MORE_BYTES = 80;

/**
 * Reads what `writeSmallStates` wrote. The data are views of `bytes`. Errors: ARCHIVE_INVALID, which names the entry.
 */
export function readSmallStates(entry: string, bytes: Uint8Array): NewState[] {
  const states: NewState[] = [];
  try {
    for (const frames = new StepFrames(bytes); frames.next(); ) {
      const input = new WireReader(bytes, frames.from, frames.to);
      input.expect(STATE.data);
      const data = input.bytes();
      input.expect(STATE.digest);
      states.push({ digest: input.text(), data });
      input.finish();
    }
  } catch (error) {
    if (error instanceof DamagedStep) throw archiveInvalid(entry, error.message, error);
    throw error;
  }
  return states;
}
