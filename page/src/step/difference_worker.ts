import { differenceOf } from './difference.ts';

/** The worker that compares two states: a comparison can take long, and the page stays usable meanwhile. */

addEventListener('message', ({ data: [before, after] }: MessageEvent<readonly [string, string]>) =>
  postMessage(differenceOf(before, after)),
);
