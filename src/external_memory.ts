import { setFlagsFromString } from 'node:v8';

/** The first version in which the option was measured. Versions that do not know it print an error. */
const FIRST_NODE = 26;

/**
 * Lets V8 count memory outside of its heap, such as states that are held as buffers, as part of the heap when it
 * decides when to collect. By default, V8 collects the whole heap after each 32 MB of new buffers, however much is in
 * use. Then states of 93 KB cost half as much CPU again to store, and twice as much to restore.
 */
export function countExternalMemoryAsHeap(nodeVersion: string): void {
  if (Number.parseInt(nodeVersion, 10) < FIRST_NODE) return;
  setFlagsFromString('--external-memory-accounted-in-global-limit');
}
