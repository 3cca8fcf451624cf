/** Shows the demo while it runs: bars on a terminal, lines elsewhere, JSON for a script. */
import { toJson } from '@bufbuild/protobuf';
import { MultiBar, type SingleBar } from 'cli-progress';
import { CompareTrajectoriesResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { DemoEvent } from '../demo/events.ts';
import { cut, fill, type Paint, shortNumber } from './columns.ts';
import type { Output } from './context.ts';

export interface DemoDisplay<E = DemoEvent> {
  show(event: E): void;
  /** Nothing is under way any more: leave the terminal as it was. Safe to call twice. */
  stop(): void;
}

/** CartPole-v1's own limit, to which the bars run. */
const LONGEST_EPISODE = 500;
export const NAME_COLUMNS = 21;
const CLEAR_TO_END = '\u001b[K';

/** One JSON text an event; of the steps every fiftieth. Step numbers are strings, as in all JSON of int64. */
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
  return JSON.stringify(event, (key, value: unknown) => {
    if (key === 'comparison')
      return toJson(CompareTrajectoriesResponseSchema, value as never, { alwaysEmitImplicit: true });
    return typeof value === 'bigint' ? String(value) : value;
  });
}

/** A line for what is worth one. */
export function lineDisplay(output: Output, paint: Paint): DemoDisplay {
  return {
    show(event) {
      for (const line of linesOf(event, paint)) output.write(`${line}\n`);
    },
    stop() {},
  };
}

/** Bars with a name before them, and a value and a note behind. */
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
    gracefulExit: false, // the process has one owner for signals, and it is not the bars
    emptyOnZero: true,
    forceRedraw: true, // lines above the bars move them down
  });
}

export function logAbove(bars: MultiBar, lines: readonly string[]): void {
  for (const line of lines) bars.log(`${line}${CLEAR_TO_END}\n`);
}

/** A bar a trajectory; what is more than progress stands above the bars. */
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
      bars.update(); // what was logged since the last time
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
        `trajectory ${event.trajectoryId}${event.firstStepNumber > 0n ? `, from step ${event.firstStepNumber} on` : ''}`,
      );
    case 'sealed':
      return line(event.name, event.message);
    case 'started':
      return line(event.name, `played by process ${event.pid}`);
    case 'killed': {
      const { madeNextStepNumber: made, ackedNextStepNumber: acked, storedNextStepNumber: stored, pid } = event;
      return [
        ...line(event.name, `process ${pid} killed (SIGKILL) with ${made - acked} steps unacked:`),
        `    it had made 0–${made - 1n} and knew 0–${acked - 1n} to be durable; the store holds 0–${stored - 1n}`,
      ];
    }
    case 'resumed': {
      const { nextStepNumber: next, pid } = event;
      return line(event.name, `process ${pid} goes on at step ${next}, with the state of step ${next - 1n}`);
    }
    case 'replayed':
      return [
        ...line(event.name, `played again from its step ${event.fromStepNumber} in a fresh environment:`),
        `    ${event.identicalSteps} steps, ${paint.green('every observation and state the same, bit for bit')}`,
      ];
  }
}

type Comparison = Extract<DemoEvent, { event: 'compared' }>;

/** A table: what each variant shares with the main line, where it first differs, and what that made of the reward. */
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
