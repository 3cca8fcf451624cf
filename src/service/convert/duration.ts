import { create } from '@bufbuild/protobuf';
import { type Duration, DurationSchema } from '@bufbuild/protobuf/wkt';

/** Range of google.protobuf.Duration: about 10,000 years. */
const LONGEST_SECONDS = 315_576_000_000n;

/** Returns what is wrong with a duration; undefined if nothing is wrong. */
export function durationFault({ seconds, nanos }: Duration): string | undefined {
  const isInRange = nanos >= 0 && nanos <= 999_999_999 && seconds <= LONGEST_SECONDS && seconds >= -LONGEST_SECONDS;
  return isInRange ? undefined : `must be a duration of at most ${LONGEST_SECONDS} s, with nanos from 0 to 999999999`;
}

/** Returns the duration in milliseconds, rounded up. */
export function toMillis(duration: Duration): number;
export function toMillis(duration: Duration | undefined): number | undefined;
export function toMillis(duration: Duration | undefined): number | undefined {
  return duration && Number(duration.seconds) * 1000 + Math.ceil(duration.nanos / 1_000_000);
}

export function fromSeconds(seconds: number): Duration;
export function fromSeconds(seconds: number | undefined): Duration | undefined;
export function fromSeconds(seconds: number | undefined): Duration | undefined {
  if (seconds === undefined) return undefined;
  const whole = Math.floor(seconds);
  const nanos = Math.min(999_999_999, Math.round((seconds - whole) * 1e9));
  return create(DurationSchema, { seconds: BigInt(whole), nanos });
}

export function fromMillis(millis: number): Duration {
  const whole = Math.floor(millis / 1000);
  return create(DurationSchema, { seconds: BigInt(whole), nanos: Math.round((millis - whole * 1000) * 1_000_000) });
}
