import process from 'node:process';

/** A program of the bench: its settings are JSON in argv, its figures JSON on stdout. It ends at once, whatever is still open. */
export async function program<Settings, Figures>(run: (settings: Settings) => Promise<Figures>): Promise<void> {
  const figures = await run(JSON.parse(process.argv[2] ?? '{}') as Settings);
  process.stdout.write(`${JSON.stringify(figures)}\n`, () => process.exit(0));
}

export function pause(seconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

/** NaN of nothing. */
export function percentile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}
