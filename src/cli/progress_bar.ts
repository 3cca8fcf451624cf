import { MultiBar } from 'cli-progress';
import type { Output } from './context.ts';

/** Shows how much of something is done. */
export interface Progress {
  readonly show: (done: number, total: number) => void;
  readonly stop: () => void;
}

export const NO_PROGRESS: Progress = { show() {}, stop() {} };

export function progressBar(output: Output, name = 'rows'): Progress {
  const bars = openBars(output);
  let bar: ReturnType<typeof bars.create> | undefined;
  return {
    show(done, total) {
      bar ??= bars.create(total, 0, { name, note: '' });
      bar.setTotal(total);
      bar.update(done, { note: `of ${total}` });
    },
    stop() {
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
