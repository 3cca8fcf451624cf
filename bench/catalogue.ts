import type { Bench } from './bench.ts';
import { fanIn, ingestBatch, ingestSingle } from './benches/ingest.ts';

/** All benches, in the order in which they run. */
export const BENCHES: readonly Bench[] = [ingestSingle, ingestBatch, fanIn];
