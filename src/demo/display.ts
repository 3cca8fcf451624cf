/** Shows the demo while it runs: bars on a terminal, lines elsewhere, JSON for scripts. */
import { toJson } from '@bufbuild/protobuf';
import type { SingleBar } from 'cli-progress';
import { CompareTrajectoriesResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { columnsOf, cut, fill, JSON_FORM, type Paint, paintFor, shortNumber, valueJson } from '../cli/columns.ts';
import type { CliContext, Output } from '../cli/context.ts';
import { durationText, openBars } from '../cli/progress.ts';
import type { DemoEvent } from './events.ts';

interface Display {
  show(event: DemoEvent): void;
  /** Ends the bars and restores the terminal. Later events are printed as lines. */
  stop(): void;
}

export const NAME_COLUMNS = 21;
/** Longest episode of CartPole-v1: the length of a full bar. */
const LONGEST_EPISODE = 500;
const CLEAR_TO_END = '\u001b[K';

export function openDisplay({ stdout, env }: CliContext, json: boolean): Display {
  if (json) return jsonDisplay(stdout);
  const paint = paintFor(stdout, env);
  return stdout.isTTY ? barDisplay(stdout, paint, columnsOf({ stdout, env })) : lineDisplay(stdout, paint);
}

/** Prints one JSON text per event, and every fiftieth step. */
function jsonDisplay(output: Output): Display {
  return {
    show(event) {
      if (event.event !== 'step' || event.stepNumber % 50n === 0n) output.write(`${eventJson(event)}\n`);
    },
    stop() {},
  };
}

/** Step numbers are strings, as int64 values are in protobuf's JSON. */
export function eventJson(event: object): string {
  return valueJson(event, (key, value: unknown) => {
    if (key === 'comparison') return toJson(CompareTrajectoriesResponseSchema, value as never, JSON_FORM);
    return typeof value === 'bigint' ? String(value) : value;
  });
}

/** Prints lines for each important event, and for each tenth of the progress. */
function lineDisplay(output: Output, paint: Paint): Display {
  let printedTenths = 0;
  return {
    show(event) {
      const tenth = event.event === 'progress' ? Math.floor(event.percent / 10) : undefined;
      if (tenth !== undefined && tenth <= printedTenths) return;
      printedTenths = tenth ?? printedTenths;
      for (const line of linesOf(event, paint)) output.write(`${line}\n`);
    },
    stop() {},
  };
}

/** Shows a bar for each trajectory, and for the run and each of its stages. Other events are printed above the bars. */
function barDisplay(output: Output, paint: Paint, columns: number): Display {
  const bars = openBars(output);
  const byName = new Map<string, SingleBar>();
  let isStopped = false;
  const draw = (name: string, total: number, value: number | undefined, note?: string) => {
    const bar = byName.get(name) ?? bars.create(total, value ?? 0, { name: fill(name, NAME_COLUMNS), note: '' });
    byName.set(name, bar);
    const payload = note === undefined ? {} : { note: paint.dim(cut(note, columns - NAME_COLUMNS - 36)) };
    if (value === undefined) bar.update(payload);
    else bar.update(value, payload);
  };
  const showBar = (event: DemoEvent): boolean => {
    const { name } = event;
    if (event.event === 'trajectory') draw(name, LONGEST_EPISODE, Number(event.firstStepNumber));
    else if (event.event === 'step') draw(name, LONGEST_EPISODE, Number(event.stepNumber));
    else if (event.event === 'sealed') draw(name, LONGEST_EPISODE, undefined, event.message);
    else if (event.event === 'progress') {
      const left = event.remainingSeconds === undefined ? '' : `${durationText(event.remainingSeconds)} left, `;
      const note = `${left}${event.rolloutsDone}/${event.rolloutsExpected} rollouts`;
      draw(name, 100, Math.floor(event.percent), note);
      for (const stage of event.stages) draw(stage.name, 100, Math.floor(stage.percent), '');
    } else return false;
    return true;
  };
  return {
    show(event) {
      if (!isStopped && showBar(event)) return;
      for (const line of linesOf(event, paint)) {
        if (isStopped) output.write(`${line}\n`);
        else bars.log(`${line}${CLEAR_TO_END}\n`);
      }
    },
    stop() {
      if (isStopped) return;
      isStopped = true;
      bars.update(); // prints the lines that were logged since the last update
      bars.stop();
    },
  };
}

function linesOf(event: DemoEvent, paint: Paint): string[] {
  const line = (text: string, ...more: string[]) => [`  ${paint.bold(event.name)}: ${text}`, ...more];
  switch (event.event) {
    case 'step':
    case 'compared':
      return [];
    case 'trajectory': {
      const { trajectoryId, firstStepNumber: first } = event;
      return line(`trajectory ${trajectoryId}${first > 0n ? `, from step ${first}` : ''}`);
    }
    case 'sealed':
      return line(event.message);
    case 'started':
      return line(`played by process ${event.pid}`);
    case 'killed': {
      const { madeNextStepNumber: made, ackedNextStepNumber: acked, storedNextStepNumber: stored, pid } = event;
      return line(
        `process ${pid} killed (SIGKILL) with ${made - acked} steps unacked:`,
        `    it had sent 0–${made - 1n}, and 0–${acked - 1n} were acked; the store holds 0–${stored - 1n}`,
      );
    }
    case 'resumed': {
      const { nextStepNumber: next, pid } = event;
      return line(`process ${pid} resumes at step ${next}, with the state of step ${next - 1n}`);
    }
    case 'replayed': {
      const same = paint.green('every observation and state is identical, bit for bit');
      const from = `replayed from its step ${event.fromStepNumber} in a fresh environment:`;
      return line(from, `    ${event.identicalSteps} steps, ${same}`);
    }
    case 'run':
      return line(`run ${event.runId}, of ${event.experimentName}`);
    case 'progress': {
      const { percent, rolloutsDone, rolloutsExpected, remainingSeconds } = event;
      const left = remainingSeconds === undefined ? '' : `, ${durationText(remainingSeconds)} left`;
      return line(`${Math.floor(percent)} %, ${rolloutsDone} of ${rolloutsExpected} rollouts${left}`);
    }
    case 'worker':
      return line(`process ${event.pid} claims rollouts`);
    case 'worker_killed':
      return line(`process ${event.pid} killed (SIGKILL) after ${event.turns} turns of a rollout`);
    case 'claimed_again':
      return line(`claimed that rollout again, as attempt ${event.attempt}`);
    case 'stage':
      return line(`policy ${event.version} came to a mean reward of ${shortNumber(event.rewardMean)}`);
  }
}
