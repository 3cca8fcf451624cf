/** Shows progress: formats it in a few columns, and draws bars that move. */
import type { Duration, Timestamp } from '@bufbuild/protobuf/wkt';
import { MultiBar } from 'cli-progress';
import type { Progress } from '../../gen/es/anabranch/v1/run_pb.js';
import type { CliContext, Output } from './context.ts';
import { kindName } from './status.ts';

/** `━━━━━─────`; the bar is full only at 100 %. */
export function progressBar(percent: number, columns: number): string {
  const done = Math.max(0, Math.min(columns, Math.floor((percent / 100) * columns)));
  return '━'.repeat(done) + '─'.repeat(columns - done);
}

/** ` 58 %`, always five columns. Shows 100 only for exactly 100 %. */
export function percentText(percent: number): string {
  return `${Math.max(0, Math.min(100, Math.floor(percent)))} %`.padStart(5);
}

/** `45 s`, `12 min`, `3.2 h`, `11 d`, `2.5 y`: at most six columns. */
export function durationText(seconds: number): string {
  if (seconds < 59.5) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 59.5 * 60) return `${Math.round(seconds / 60)} min`;
  const hours = seconds / 3600;
  if (hours < 47.5) return `${hours < 9.95 ? hours.toFixed(1) : Math.round(hours)} h`;
  const days = hours / 24;
  if (days < 999.5) return `${days < 9.95 ? days.toFixed(1) : Math.round(days)} d`;
  const years = days / 365;
  if (years < 999.5) return `${years < 9.95 ? years.toFixed(1) : Math.round(years)} y`;
  return '>999 y';
}

export function secondsOf({ seconds, nanos }: Duration | Timestamp): number {
  return Number(seconds) + nanos / 1e9;
}

/** Formats the duration between two server times. Undefined unless both are set. */
export function tookText(start: Timestamp | undefined, end: Timestamp | undefined): string | undefined {
  if (start === undefined || end === undefined) return undefined;
  return durationText(secondsOf(end) - secondsOf(start));
}

/** Formats the remaining time, such as `12 min`. Undefined if the server has no estimate. */
export function leftText({ estimatedRemaining }: Pick<Progress, 'estimatedRemaining'>): string | undefined {
  return estimatedRemaining === undefined ? undefined : durationText(secondsOf(estimatedRemaining));
}

/** `2026-11-21 15:40:12 UTC` */
export function timeText(time: Timestamp): string {
  const date = new Date(Number(time.seconds) * 1000);
  return `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

/** `80 of 160 turns`, or `80 of 160` without a noun. Empty if both counts are 0. */
export function countText(done: bigint, expected: bigint, noun = ''): string {
  if (done === 0n && expected === 0n) return '';
  if (expected === 0n) return `${done} ${done === 1n ? noun.replace(/s$/, '') : noun}`.trimEnd();
  return `${done} of ${expected} ${noun}`.trimEnd();
}

/** `1 of 10 train steps, 1 failed`. Empty without stages. */
export function kindsText({ kinds }: Pick<Progress, 'kinds'>): string {
  const parts = kinds.flatMap(({ kind, planned, created, completed, failed, cancelled }) => [
    countText(completed, planned > created ? planned : created, `${kindName(kind)}s`),
    failed === 0n ? '' : `${failed} failed`,
    cancelled === 0n ? '' : `${cancelled} cancelled`,
  ]);
  return parts.filter((part) => part !== '').join(', ');
}

/** `12 of 32 rollouts (4 live)`, or `12 of 32 (4 live)` without a noun. Empty without rollouts. */
export function rolloutsText({ kinds, openStages }: Pick<Progress, 'kinds' | 'openStages'>, noun = ''): string {
  const sum = (of: (kind: Progress['kinds'][number]) => bigint) => kinds.reduce((total, kind) => total + of(kind), 0n);
  const live = openStages.reduce((total, { rolloutsLive }) => total + rolloutsLive, 0n);
  const count = countText(
    sum(({ rolloutsTerminal }) => rolloutsTerminal),
    sum(({ rolloutsExpected }) => rolloutsExpected),
    noun,
  );
  return live === 0n ? count : `${count} (${live} live)`;
}

/**
 * `80 of 640 turns, 12 of 32 rollouts (4 live), 9 of 40 substeps, 1 of 10 train steps, 1 failed`. Empty if all counts
 * are 0.
 */
export function countsText(progress: Progress): string {
  const parts = [workText(progress), kindsText(progress)];
  return parts.filter((part) => part !== '').join(', ');
}

/** `80 of 640 turns, 12 of 32 rollouts (4 live), 9 of 40 substeps`: the work within stages. */
export function workText(progress: Progress): string {
  const parts = [
    countText(progress.turnsDone, progress.turnsExpected, 'turns'),
    rolloutsText(progress, 'rollouts'),
    countText(progress.substepsDone, progress.substepsExpected, 'substeps'),
  ];
  return parts.filter((part) => part !== '').join(', ');
}

/** Shows how much of something is done. Its disposal ends the bar. */
export interface ProgressBar extends Disposable {
  readonly show: (done: number, total: number) => void;
}

/** Opens a bar on a terminal. Returns undefined elsewhere, and for commands that print JSON. */
export function openProgress(
  { stdout }: Pick<CliContext, 'stdout'>,
  { json }: { readonly json?: true },
  name = 'rows',
): ProgressBar | undefined {
  if (stdout.isTTY !== true || json) return undefined;
  const bars = openBars(stdout);
  let bar: ReturnType<typeof bars.create> | undefined;
  return {
    show(done, total) {
      bar ??= bars.create(total, 0, { name, note: '' });
      bar.setTotal(total);
      bar.update(done, { note: `of ${total}` });
    },
    [Symbol.dispose]() {
      bars.update();
      bars.stop();
    },
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
