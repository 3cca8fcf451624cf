import { MultiBar } from 'cli-progress';
import type { CliContext, Output } from './context.ts';

/** Shows how much of something is done. Its disposal ends the bar. */
export interface Progress extends Disposable {
  readonly show: (done: number, total: number) => void;
}

/** Opens a bar on a terminal. Returns undefined elsewhere, and for commands that print JSON. */
export function openProgress(
  { stdout }: Pick<CliContext, 'stdout'>,
  { json }: { readonly json?: true },
  name = 'rows',
): Progress | undefined {
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
