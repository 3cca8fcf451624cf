import process from 'node:process';
import { InterceptingCall, type Interceptor } from '@grpc/grpc-js';

/**
 * Runs a program of the bench. Its settings are JSON in argv, and its figures are JSON on stdout. It exits at once,
 * whatever is still open.
 */
export async function program<Settings, Figures>(run: (settings: Settings) => Promise<Figures>): Promise<void> {
  const figures = await run(JSON.parse(process.argv[2] ?? '{}') as Settings);
  process.stdout.write(`${JSON.stringify(figures)}\n`, () => process.exit(0));
}

export function pause(seconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

/** Returns NaN for an empty list. */
export function percentile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}

/** Returns what adds the key to each call of a client of grpc-js. */
export function interceptorsFor(token: string | undefined): Interceptor[] {
  if (token === undefined) return [];
  return [
    (options, nextCall) =>
      new InterceptingCall(nextCall(options), {
        start(metadata, listener, next) {
          metadata.set('authorization', `Bearer ${token}`);
          next(metadata, listener);
        },
      }),
  ];
}
