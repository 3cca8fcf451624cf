import { createHash } from 'node:crypto';
import { v5 } from 'uuid';
import { isStorable } from '../json_text.ts';

/** Values of labels, names and tasks have at most this many bytes. */
const LABEL_BYTES = 256;
const STATE_NAME_BYTES = 64;
const IDS = 'b8970a64-f320-45cd-b732-f25803745768';
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Not that of Python: what the serializer of one language writes, that of the other cannot read. */
export const INTEGRATION = 'langgraph-js';

/** Returns the task of the trajectories of a thread. */
export function taskOf(threadId: string): string {
  return fitting(`${INTEGRATION}/${threadId}`, `${INTEGRATION}/sha256:${digestOf(threadId)}`);
}

/** Returns a text, or its digest if no label can have the text. */
export function fitting(text: string, otherwise?: string): string {
  if (Buffer.byteLength(text) <= LABEL_BYTES && isStorable(text)) return text;
  return otherwise ?? `sha256:${digestOf(text)}`;
}

/** Returns the name of a trajectory, for people. */
export function nameOf(threadId: string, ns: string): string {
  const text = (ns === '' ? threadId : `${threadId} · ${ns}`).toWellFormed().replaceAll('\0', '\uFFFD');
  const bytes = Buffer.from(text);
  if (bytes.byteLength <= LABEL_BYTES) return text;
  // A character that was cut in the middle is left out.
  return bytes
    .subarray(0, LABEL_BYTES)
    .toString()
    .replace(/\uFFFD+$/, '');
}

/** Returns the name of the state that has the checkpoints of a namespace. */
export function headOf(ns: string): string {
  return ns === '' ? 'checkpoint' : `checkpoint/${digestOf(ns).slice(0, 32)}`;
}

/** Returns the name of the states by which a checkpoint and its writes are found. */
export function keyOf(ns: string, checkpointId: string): string {
  return ns === '' && UUID.test(checkpointId) ? checkpointId : digestOf(`${ns}\0${checkpointId}`);
}

/** Returns the name of the state that has a large value of a channel. */
export function channelState(channel: string): string {
  const name = `channel/${channel}`;
  if (Buffer.byteLength(name) <= STATE_NAME_BYTES && isStorable(name)) return name;
  return `channel/${digestOf(channel).slice(0, 32)}`;
}

/**
 * Returns the id of the trajectory with the pending writes of a thread. Another generation follows when it was deleted
 * or sealed.
 */
export function writesId(threadId: string, generation: number): string {
  return contentId(threadId, generation);
}

/** Returns the id of what these parts name, so that a repetition creates nothing else. */
export function contentId(...parts: readonly (string | number)[]): string {
  return v5(JSON.stringify(parts), IDS);
}

function digestOf(text: string): string {
  return createHash('sha256').update(bytesOf(text)).digest('hex');
}

/** Returns text as UTF-8, half of a surrogate pair as if it were a character, as Python's `surrogatepass` does. */
function bytesOf(text: string): Uint8Array {
  if (text.isWellFormed()) return Buffer.from(text);
  const parts = Array.from(text, (character) => {
    const code = character.codePointAt(0) ?? 0;
    const isHalf = code >= 0xd800 && code <= 0xdfff;
    return isHalf
      ? Buffer.from([0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)])
      : Buffer.from(character);
  });
  return Buffer.concat(parts);
}
