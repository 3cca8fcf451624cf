import { create } from '@bufbuild/protobuf';
import { type Duration, DurationSchema } from '@bufbuild/protobuf/wkt';
import { invalidField } from '../../domain/errors.ts';

/** In milliseconds, never shorter than it was asked for. Errors: INVALID_REQUEST, naming the field, for what no Duration may hold. */
export function toMillis(duration: Duration | undefined, field: string): number | undefined {
  if (duration === undefined) return undefined;
  const { seconds, nanos } = duration;
  if (nanos < 0 || nanos > 999_999_999) throw invalidField(field, 'must be a duration with nanos from 0 to 999999999');
  return Number(seconds) * 1000 + Math.ceil(nanos / 1_000_000);
}

export function fromSeconds(seconds: number): Duration {
  const whole = Math.floor(seconds);
  const nanos = Math.min(999_999_999, Math.round((seconds - whole) * 1e9));
  return create(DurationSchema, { seconds: BigInt(whole), nanos });
}

export function fromMillis(millis: number): Duration {
  const whole = Math.floor(millis / 1000);
  return create(DurationSchema, { seconds: BigInt(whole), nanos: Math.round((millis - whole * 1000) * 1_000_000) });
}
