/**
 * Runs in the page that is measured, before its own scripts. Times are those of `performance.now()`: milliseconds since
 * the navigation began, in a task after the frame that shows what was waited for.
 */

interface Probe {
  /** Resolves when at least this many elements match. */
  seen(selector: string, count: number): Promise<number>;
  /** Presses `n` and resolves when the next step is shown: its image, and the changes of its state. */
  nextStep(): Promise<number>;
  /** Scrolls an element by `pixels` in each frame. Resolves with the times between the frames. */
  scroll(selector: string, frames: number, pixels: number): Promise<number[]>;
}

(globalThis as unknown as { probe: Probe }).probe = {
  async seen(selector, count) {
    await until(() => document.querySelectorAll(selector).length >= count);
    return performance.now();
  },

  async nextStep() {
    const number = () => Number(document.querySelector<HTMLInputElement>('.stepper input[type=number]')?.value);
    const image = () => document.querySelector<HTMLImageElement>('.step-body img');
    const [before, old] = [number(), image()?.src];
    const begun = performance.now();
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'n', bubbles: true }));
    await until(() => {
      const shown = image();
      const caption = document.querySelector('.changes caption')?.textContent ?? '';
      const isNew = shown?.complete === true && shown.naturalWidth > 0 && shown.src !== old;
      return isNew && number() === before + 1 && caption.endsWith(`since step ${before.toLocaleString('en')}`);
    });
    return performance.now() - begun;
  },

  async scroll(selector, frames, pixels) {
    const element = document.querySelector(selector);
    const times: number[] = [];
    let last = await frame();
    for (let at = 0; at < frames; at += 1) {
      element?.scrollBy(0, pixels);
      const now = await frame();
      times.push(now - last);
      last = now;
    }
    return times;
  },
};

/** Resolves in a task after the first frame in which a condition holds. */
async function until(holds: () => boolean): Promise<void> {
  do await frame();
  while (!holds());
  await new Promise((resolve) => setTimeout(resolve, 0));
}

function frame(): Promise<number> {
  return new Promise(requestAnimationFrame);
}
