import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { plainColour } from '../../src/cli/picture/colour.ts';
import { SvgPen } from '../../src/cli/picture/svg_pen.ts';
import { PALETTES, treePicture } from '../../src/cli/picture/tree_picture.ts';

describe('pictures as SVG', () => {
  it('have the colours of the page', () => {
    const style = readFileSync('page/src/style.css', 'utf8');
    for (const [at, theme] of (['light', 'dark'] as const).entries()) {
      for (const [name, colour] of Object.entries(PALETTES[theme])) {
        const pair = new RegExp(`--${name}: light-dark\\((#\\w{6}), (#\\w{6})\\);`).exec(style);
        expect(pair?.[at + 1], `${name}, ${theme}`).toBe(colour);
      }
    }
  });

  it('mix colours as browsers do', () => {
    // As Chromium computes them.
    expect(plainColour('color-mix(in oklab, #1766b8 100%, #a7aeb8)')).toBe('#1766b8');
    expect(plainColour('color-mix(in oklab, #000000 0%, #ffffff)')).toBe('#ffffff');
    expect(plainColour('color-mix(in oklab, #000000 50%, #ffffff)')).toBe('#636363');
    expect(plainColour('#123456')).toBe('#123456');
  });

  it('close what clips, and restore what was saved', () => {
    const pen = new SvgPen();
    pen.save();
    pen.lineWidth = 3;
    pen.rect(0, 0, 1, 1);
    pen.clip();
    pen.restore();
    pen.restore();
    expect(pen.lineWidth).toBe(1);
    const svg = pen.document({ width: 1, height: 1 }, '#ffffff', 'a');
    expect(svg.match(/<g/g)).toHaveLength(1);
    expect(svg.match(/<\/g>/g)).toHaveLength(1);
  });

  it('take a tree without trajectories, steps or finite values', () => {
    const options = { label: 'sum', theme: 'light', part: 'both', rows: 60 } as const;
    const item = {
      id: 'a',
      parentId: '',
      branchPoint: -1,
      end: 0,
      name: '',
      reward: Number.NaN,
      gain: Number.NaN,
      status: 99,
      deleted: false,
    };
    const series = new Map([['a', { steps: Float64Array.of(0, 1), values: Float64Array.of(Number.NaN, Infinity) }]]);
    for (const items of [[], [item]]) {
      expect(treePicture({ ...options, items, series })).not.toMatch(/="[^"]*(?:NaN|Infinity)/);
    }
  });
});
