import { TimeSpanSchema, type TimeSpan as WireSpan } from '../../../gen/es/anabranch/v1/run_pb.js';
import type { TimeSpan } from '../../domain/run.ts';
import { messageOf } from '../answer/message.ts';
import { fromInstant, fromMap, toInstant } from './values.ts';

export function toTimings(timings: { readonly [name: string]: WireSpan }): ReadonlyMap<string, TimeSpan> {
  return new Map(
    Object.entries(timings).map(([name, { startTime, endTime }]) => [
      name,
      { startTime: toInstant(startTime), endTime: toInstant(endTime) },
    ]),
  );
}

export function fromTimings(timings: ReadonlyMap<string, TimeSpan>): { [name: string]: WireSpan } {
  return fromMap(new Map([...timings].map(([name, span]) => [name, fromTimeSpan(span)])));
}

function fromTimeSpan({ startTime, endTime }: TimeSpan): WireSpan {
  return messageOf(TimeSpanSchema, { startTime: fromInstant(startTime), endTime: fromInstant(endTime) });
}
