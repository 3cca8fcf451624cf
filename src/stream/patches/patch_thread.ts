import { parentPort } from 'node:worker_threads';
import { jsonPatch, type PatchResult } from '../../domain/json_patch.ts';

/** Program of the thread that computes JSON Patches. Hostile documents can exhaust its memory, but not the server's. */

if (parentPort === null) throw new Error('this program runs as a thread');
const port = parentPort;
port.on('message', ([one, other]: readonly SharedArrayBuffer[]) => {
  port.postMessage(resultOf(bytesOf(one!), bytesOf(other!)));
});

function resultOf(one: Uint8Array, other: Uint8Array): PatchResult {
  try {
    return jsonPatch(one, other);
  } catch (error) {
    if (error instanceof RangeError) return { noPatch: 'TOO_COMPLEX' };
    throw error;
  }
}

/** Returns a copy, because shared memory cannot be decoded. */
function bytesOf(shared: SharedArrayBuffer): Uint8Array {
  return new Uint8Array(new Uint8Array(shared));
}
