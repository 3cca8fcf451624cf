import { totalmem } from 'node:os';
import { setFlagsFromString } from 'node:v8';

/**
 * Lets the heap of the server grow to 256 MB before V8 collects all of it. By default, V8 does so at 50 to 60 MB, after
 * each hundred states of 93 KB, and stops the server for up to 20 ms. V8 reads the flag when the process starts.
 */
export const INITIAL_HEAP = '--initial-heap-size=256';

/** Memory below which the server leaves the heap small. */
const LEAST_MEMORY = 1024 * 1024 * 1024;
/** V8's flags for sizes of the heap, such as `--max-old-space-size=512`. V8 also accepts underscores. */
const SIZES = /--(initial|max|min)[-_][a-z_-]*size/;

export interface StartedNode {
  /** Node's own arguments, and those of NODE_OPTIONS. */
  readonly nodeArgs: readonly string[];
  readonly nodeOptions: string | undefined;
  /** Bound on the memory of the process by a cgroup, in bytes. 0 if unknown. */
  readonly memoryLimit: number;
}

/**
 * Returns Node's arguments for a server. Undefined if the process has them already, if the user has set a size of the
 * heap, or if there is less than 1 GiB of memory.
 */
export function withInitialHeap({ nodeArgs, nodeOptions = '', memoryLimit }: StartedNode): string[] | undefined {
  const memory = Math.min(totalmem(), memoryLimit || Number.POSITIVE_INFINITY);
  if (memory < LEAST_MEMORY || [nodeOptions, ...nodeArgs].some((text) => SIZES.test(text))) return undefined;
  return [...nodeArgs, INITIAL_HEAP];
}

/** Leaves the default to threads, each of which has a heap of its own. V8 reads the flag when a thread starts. */
export function limitToThisThread(nodeArgs: readonly string[]): void {
  if (nodeArgs.includes(INITIAL_HEAP)) setFlagsFromString('--initial-heap-size=0');
}
