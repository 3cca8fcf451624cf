import { compressedBody, compressedStates } from '../step/stored_body.ts';
import { StepWriter } from '../step/writer.ts';
import type { SegmentRow } from '../tables/steps.ts';

/** Writes steps that were stored before. Their rows are full already, so they are compressed at once. */
export class RestoredWriter extends StepWriter {
  protected override finished(segments: readonly SegmentRow[]): Promise<readonly SegmentRow[]> {
    const { compressor } = this.engine;
    return Promise.all(
      segments.map(async (row) => {
        const [states, body] = await Promise.all([
          compressedStates(compressor, row.states),
          compressedBody(compressor, row.first_step_number, row.body),
        ]);
        return { ...row, ...states, ...body };
      }),
    );
  }
}
