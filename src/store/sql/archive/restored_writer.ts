import { mergedRow } from '../step/merged_row.ts';
import { StepWriter } from '../step/writer.ts';
import type { SegmentRow } from '../tables/steps.ts';

/** Writes steps that were stored before. Their rows are full already, so they are compressed at once. */
export class RestoredWriter extends StepWriter {
  protected override finished(segments: readonly SegmentRow[]): Promise<readonly SegmentRow[]> {
    return Promise.all(segments.map(async (row) => (await mergedRow([row])) ?? row));
  }
}
