import process from 'node:process';

export type Figures = Readonly<Record<string, number | string>>;

/** Prints the result of a proof, as a line for people. */
export function reportFigures(proof: string, figures: Figures): void {
  process.stdout.write(`${proof}: ${textOf(figures)}\n`);
}

export function textOf(figures: Figures): string {
  return Object.entries(figures)
    .map(([name, value]) => `${name} ${value}`)
    .join(', ');
}
