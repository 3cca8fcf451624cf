import type { SegmentRow } from '../../kit/tables/steps.ts';
import { StepWriter } from '../../log/append/writer.ts';
import { compressedBody, compressedStates } from '../../log/read/stored_body.ts';

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
