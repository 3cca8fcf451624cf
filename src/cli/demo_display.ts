/** Shows the demo while it runs: bars on a terminal, lines elsewhere, JSON for scripts. */
import { toJson } from '@bufbuild/protobuf';
import { MultiBar, type SingleBar } from 'cli-progress';
import { CompareTrajectoriesResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { DemoEvent } from '../demo/events.ts';
import { cut, fill, type Paint, shortNumber } from './columns.ts';
import type { Output } from './context.ts';
import { valueJson } from './json_text.ts';

export interface DemoDisplay<E = DemoEvent> {
  show(event: E): void;
  /** Stops the display and restores the terminal. Can be called twice. */
  stop(): void;
}

/** Longest episode of CartPole-v1: the length of a full bar. */
const LONGEST_EPISODE = 500;
export const NAME_COLUMNS = 21;
const CLEAR_TO_END = '\u001b[K';

/**
 * Prints one JSON text per event, and every fiftieth step. Step numbers are strings, as int64 values are in protobuf's
 * JSON.
 */
export function jsonDisplay(output: Output): DemoDisplay {
  return {
    show(event) {
      if (event.event === 'step' && event.stepNumber % 50n !== 0n) return;
      output.write(`${eventJson(event)}\n`);
    },
    stop() {},
  };
}

export function eventJson(event: object): string {
  return valueJson(event, (key, value: unknown) => {
    if (key === 'comparison')
      return toJson(CompareTrajectoriesResponseSchema, value as never, { alwaysEmitImplicit: true });
    return typeof value === 'bigint' ? String(value) : value;
  });
}

/** Prints a line for each important event. */
export function lineDisplay(output: Output, paint: Paint): DemoDisplay {
  return {
    show(event) {
      for (const line of linesOf(event, paint)) output.write(`${line}\n`);
    },
    stop() {},
  };
}

/** Opens bars with a name on their left, and a value and a note on their right. */
export function openBars(output: Output): MultiBar {
  return new MultiBar({
    stream: output,
    format: `  {name} {bar} {value}  {note}`,
    barsize: 24,
    fps: 20,
    barCompleteChar: '━',
    barIncompleteChar: '─',
    hideCursor: true,
    linewrap: false,
    gracefulExit: false, // only main.ts handles signals
    emptyOnZero: true,
    forceRedraw: true, // lines printed above the bars move the bars down
  });
}

export function logAbove(bars: MultiBar, lines: readonly string[]): void {
  for (const line of lines) bars.log(`${line}${CLEAR_TO_END}\n`);
}

/** Shows a bar per trajectory. Events other than progress are printed above the bars. */
export function barDisplay(output: Output, paint: Paint, columns: number): DemoDisplay {
  const bars = openBars(output);
  const byName = new Map<string, SingleBar>();
  let stopped = false;
  const note = (text: string) => cut(text, columns - NAME_COLUMNS - 36);
  return {
    show(event) {
      if (stopped) {
        for (const line of linesOf(event, paint)) output.write(`${line}\n`);
      } else if (event.event === 'trajectory') {
        const payload = { name: fill(event.name, NAME_COLUMNS), note: '' };
        byName.set(event.name, bars.create(LONGEST_EPISODE, Number(event.firstStepNumber), payload));
      } else if (event.event === 'step') {
        byName.get(event.name)?.update(Number(event.stepNumber));
      } else if (event.event === 'sealed') {
        byName.get(event.name)?.update({ note: paint.dim(note(event.message)) });
      } else {
        logAbove(bars, linesOf(event, paint));
      }
    },
    stop() {
      if (stopped) return;
      stopped = true;
      bars.update(); // prints the lines that were logged since the last update
      bars.stop();
    },
  };
}

function linesOf(event: DemoEvent, paint: Paint): string[] {
  const line = (name: string, text: string) => [`  ${paint.bold(name)}: ${text}`];
  switch (event.event) {
    case 'step':
    case 'compared':
      return [];
    case 'trajectory':
      return line(
        event.name,
        `trajectory ${event.trajectoryId}${event.firstStepNumber > 0n ? `, from step ${event.firstStepNumber}` : ''}`,
      );
    case 'sealed':
      return line(event.name, event.message);
    case 'started':
      return line(event.name, `played by process ${event.pid}`);
    case 'killed': {
      const { madeNextStepNumber: made, ackedNextStepNumber: acked, storedNextStepNumber: stored, pid } = event;
      return [
        ...line(event.name, `process ${pid} killed (SIGKILL) with ${made - acked} steps unacked:`),
        `    it had sent 0–${made - 1n}, and 0–${acked - 1n} were acked; the store holds 0–${stored - 1n}`,
      ];
    }
    case 'resumed': {
      const { nextStepNumber: next, pid } = event;
      return line(event.name, `process ${pid} resumes at step ${next}, with the state of step ${next - 1n}`);
    }
    case 'replayed':
      return [
        ...line(event.name, `replayed from its step ${event.fromStepNumber} in a fresh environment:`),
        `    ${event.identicalSteps} steps, ${paint.green('every observation and state is identical, bit for bit')}`,
      ];
  }
}

type Comparison = Extract<DemoEvent, { event: 'compared' }>;

/**
 * Draws a table: the steps that each variant shares with the main line, their first difference, and the difference in
 * reward.
 */
export function comparisonTable(comparisons: readonly Comparison[], columns: number): string[] {
  const row = (name: string, shared: string, difference: string, reward: string) => {
    const fixed = [fill(name, NAME_COLUMNS), fill(shared, 8), reward.padStart(7)];
    return `${fixed[0]} ${fixed[1]} ${fill(difference, columns - NAME_COLUMNS - 18)} ${fixed[2]}`;
  };
  return [
    row('against the main line', 'shared', 'first difference', 'reward'),
    ...comparisons.map(({ name, comparison }) => {
      const { sharedSteps, rewardDifference } = comparison;
      const shared = sharedSteps === 0n ? 'none' : `0–${sharedSteps - 1n}`;
      const sign = rewardDifference > 0 ? '+' : rewardDifference < 0 ? '' : '±';
      return row(name, shared, differenceText(comparison), `${sign}${shortNumber(rewardDifference)}`);
    }),
  ];
}

function differenceText({ firstDifference: first }: Comparison['comparison']): string {
  if (first === undefined) return 'nowhere';
  if (first.field === '') return `${first.stepNumber}, where one ends`;
  return `${first.stepNumber}, ${first.field}: ${first.valueJson} → ${first.otherValueJson}`;
}
