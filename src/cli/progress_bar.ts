import type { Output } from './context.ts';
import { openBars } from './demo_display.ts';

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
