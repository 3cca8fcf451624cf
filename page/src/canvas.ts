import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useState } from 'preact/hooks';
import type { Palette } from './pen.ts';

/** The properties are registered as colours in the style sheet, so their computed values have no functions. */
export function paletteOf(element: Element): Palette {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: colour('ink'),
    dim: colour('dim'),
    line: colour('line'),
    panel: colour('panel'),
    accent: colour('accent'),
    bad: colour('bad'),
    better: colour('better'),
    worse: colour('worse'),
    equal: colour('equal'),
  };
}

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** Returns the size of an element, and again when it changes. */
export function useSize(element: RefObject<HTMLElement | null>): Size {
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const watched = element.current;
    if (watched === null) return;
    const measure = () => {
      const { clientWidth: width, clientHeight: height } = watched;
      setSize((last) => (last.width === width && last.height === height ? last : { width, height }));
    };
    // The observer would call two frames later.
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(watched);
    return () => observer.disconnect();
  }, []);
  return size;
}

/** Changes when the colours of the page change, so that canvases are drawn again. */
export function useTheme(): number {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const queries = ['(prefers-color-scheme: dark)', '(forced-colors: active)'].map((each) => matchMedia(each));
    const changed = () => setRound((last) => last + 1);
    for (const query of queries) query.addEventListener('change', changed);
    return () => {
      for (const query of queries) query.removeEventListener('change', changed);
    };
  }, []);
  return round;
}

/** Clears a canvas at the resolution of the screen, and returns what draws on it in CSS pixels. */
export function beginDrawing(canvas: HTMLCanvasElement, { width, height }: Size): CanvasRenderingContext2D | null {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext('2d');
  pen?.scale(ratio, ratio);
  return pen;
}
