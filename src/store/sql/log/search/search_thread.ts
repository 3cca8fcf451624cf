import { parentPort } from 'node:worker_threads';
import { DamagedStep } from '../../../../domain/step_codec/damaged_step.ts';
import { StepFrames } from '../../../../domain/step_codec/frames.ts';
import { readStep } from '../../../../domain/step_codec/read.ts';
import { type FoundText, TextSearch } from '../../../../domain/step_search.ts';
import { readBody } from '../read/stored_body.ts';
import type { SearchedSegment, SearchJob, SearchReply } from './search_job.ts';

/** Program of the thread that searches steps: reads of other callers are served meanwhile. */

if (parentPort === null) throw new Error('this program runs as a thread');
const port = parentPort;
port.on('message', (job: SearchJob) => port.postMessage(replyTo(job)));

function replyTo({ text, limit, segments }: SearchJob): SearchReply {
  try {
    const search = new TextSearch(text);
    const found: FoundText[] = [];
    for (const segment of segments) {
      if (found.length >= limit) break;
      searchSegment(search, segment, limit, found);
    }
    return { found };
  } catch (error) {
    return { error: error as Error };
  }
}

/** Leaves out damaged steps. */
function searchSegment(search: TextSearch, segment: SearchedSegment, limit: number, found: FoundText[]): void {
  const { owner, first, from, to } = segment;
  const bytes = readBody(first, segment);
  if (bytes === undefined) return;
  const body = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  if (!search.mayHave(body)) return;
  try {
    const frames = new StepFrames(body);
    for (let stepNumber = first; stepNumber < to && found.length < limit && frames.next(); stepNumber += 1n) {
      if (stepNumber < from || !search.mayHave(body.subarray(frames.from, frames.to))) continue;
      const step = readStep(body, frames.from, frames.to);
      for (const match of search.find(step)) found.push({ owner, stepNumber, ...match });
    }
  } catch (error) {
    if (!(error instanceof DamagedStep)) throw error;
  }
}
