import { useEffect, useRef, useState } from 'preact/hooks';
import { beginDrawing, paletteOf, useSize, useTheme } from '../canvas.ts';
import { count, nameOf, number, signed, visible } from '../format.ts';
import { type Scale, valueOfPixel } from '../scale.ts';
import { StatusMark } from '../status.tsx';
import { drawBars } from './bar_drawing.ts';
import type { Range } from './plot_drawing.ts';
import type { ItemTag, Row } from './rows.ts';

const ROW = 28;
const HEAD = 28;
/** Room for marks at the ends of bars. */
const ROOM = 8;
/** Rows that are rendered above and below the visible ones. */
const SPARE = 8;

interface TreeGridProps {
  readonly rows: readonly Row[];
  readonly range: Range;
  readonly scale: number;
  readonly selected: string;
  readonly step: number;
  readonly onSelect: (id: string, step?: number) => void;
  readonly onToggle: (id: string, open: boolean) => void;
}

/** One row per trajectory, with a bar from its branch point to its end. Rows are elements, bars are one canvas. */
export function TreeGrid(props: TreeGridProps) {
  const { rows, selected, onSelect, onToggle } = props;
  const box = useRef<HTMLDivElement>(null);
  const bar = useRef<HTMLSpanElement>(null);
  const size = useSize(box);
  const barSize = useSize(bar);
  const [top, setTop] = useState(0);
  const hasTags = rows.some(({ item }) => (item.tags?.length ?? 0) > 0);
  const at = rows.findIndex((row) => row.item.id === selected);
  const from = Math.max(0, Math.floor(top / ROW) - SPARE);
  const to = Math.min(rows.length, Math.ceil((top + size.height) / ROW) + SPARE);

  useEffect(() => {
    const scroller = box.current;
    if (scroller === null || at < 0) return;
    const [above, below] = [at * ROW, (at + 1) * ROW + HEAD];
    if (above < scroller.scrollTop) scroller.scrollTop = above;
    else if (below > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = below - scroller.clientHeight;
  }, [selected]);

  const keys = (event: KeyboardEvent) => {
    const row = rows[at];
    if (row === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves: Readonly<Record<string, () => void>> = {
      ArrowDown: () => show(at + 1),
      ArrowUp: () => show(at - 1),
      Home: () => show(0),
      End: () => show(rows.length - 1),
      PageDown: () => show(at + 10),
      PageUp: () => show(at - 10),
      ArrowRight: () => (row.branches > 0 && !row.open ? onToggle(row.item.id, true) : row.open && show(at + 1)),
      ArrowLeft: () => (row.open ? onToggle(row.item.id, false) : row.parent >= 0 && show(row.parent)),
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    move();
  };
  const show = (wanted: number) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, wanted))];
    if (row !== undefined) onSelect(row.item.id);
  };
  return (
    <div
      class={hasTags ? 'grid-box with-tags' : 'grid-box'}
      ref={box}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <Bars {...props} top={top} size={size} bar={bar} barWidth={barSize.width} />
      <div
        role="treegrid"
        aria-label="trajectories"
        aria-rowcount={rows.length + 1}
        aria-activedescendant={at < 0 ? undefined : `row-${at}`}
        tabIndex={0}
        class="grid"
        style={{ height: `${rows.length * ROW + HEAD}px` }}
        onKeyDown={keys}
      >
        <div role="row" class="grid-row grid-head" aria-rowindex={1}>
          <span role="columnheader">Trajectory</span>
          <span role="columnheader" ref={bar}>
            Steps
          </span>
          <span role="columnheader" class="n">
            End
          </span>
          <span role="columnheader" class="n">
            Gain
          </span>
          <span role="columnheader" class="n">
            Reward
          </span>
          <span role="columnheader" class="status-cell">
            Status
          </span>
          {hasTags && (
            <span role="columnheader" class="tag-cell">
              Tags
            </span>
          )}
        </div>
        {rows.slice(from, to).map((row, offset) => (
          <GridRow
            key={row.item.id}
            row={row}
            index={from + offset}
            {...props}
            hasTags={hasTags}
            barWidth={barSize.width}
          />
        ))}
      </div>
    </div>
  );
}

interface GridRowProps extends TreeGridProps {
  readonly row: Row;
  readonly index: number;
  readonly barWidth: number;
  readonly hasTags: boolean;
}

function GridRow({ row, index, barWidth, hasTags, range, selected, onSelect, onToggle }: GridRowProps) {
  const { item, depth, open, branches } = row;
  const isSelected = item.id === selected;
  const click = (event: MouseEvent) => {
    const target = event.target as Element;
    if (target.closest('.twist') !== null) return onToggle(item.id, !open);
    const cell = target.closest('.bar-cell');
    if (cell === null) return onSelect(item.id);
    const x: Scale = { low: range.from, high: range.to, from: 0, to: barWidth };
    const step = Math.round(valueOfPixel(x, event.clientX - cell.getBoundingClientRect().left));
    onSelect(item.id, step);
  };
  return (
    <div
      role="row"
      id={`row-${index}`}
      class={`grid-row${isSelected ? ' selected' : ''}${item.deleted ? ' deleted' : ''}`}
      aria-level={depth + 1}
      aria-rowindex={index + 2}
      aria-expanded={branches > 0 ? open : undefined}
      aria-selected={isSelected}
      style={{ transform: `translateY(${index * ROW + HEAD}px)` }}
      onClick={click}
    >
      <span role="rowheader" class="name-cell" style={{ paddingLeft: `${Math.min(depth, 12) * 14}px` }}>
        <span class="twist" aria-hidden="true">
          {branches > 0 && (
            <svg viewBox="0 0 16 16" class={open ? 'open' : ''}>
              <title>{open ? 'collapse' : 'expand'}</title>
              <path d="M6 4l4 4l-4 4" />
            </svg>
          )}
        </span>
        {item.branchPoint >= 0 && <span class="dim figure">@{count(item.branchPoint)}</span>}{' '}
        <span class="name" title={nameOf(item)}>
          {nameOf(item)}
        </span>
      </span>
      <span role="gridcell" class="bar-cell">
        <span class="only-read">
          steps {count(item.branchPoint + 1)} to {count(item.end - 1)}
        </span>
      </span>
      <span role="gridcell" class="n">
        {count(item.end)}
      </span>
      <span role="gridcell" class="n">
        {item.gain === undefined ? '' : signed(item.gain)}
      </span>
      <span role="gridcell" class="n">
        {item.deleted ? '' : number(item.reward)}
      </span>
      <span role="gridcell" class="status-cell">
        {item.deleted ? <span class="dim">deleted</span> : <StatusMark status={item.status} />}
      </span>
      {hasTags && (
        <span role="gridcell" class="tag-cell">
          <Tags tags={item.tags ?? []} />
        </span>
      )}
    </div>
  );
}

/** The first tag, and how many more there are. The selected trajectory shows all of them. */
function Tags({ tags }: { readonly tags: readonly ItemTag[] }) {
  const [first, ...others] = tags;
  if (first === undefined) return null;
  return (
    <span title={tags.map(({ name, step }) => `${name}, step ${count(step)}`).join('\n')}>
      <span class="label">{visible(first.name)}</span>
      {others.length > 0 && <span class="dim">+{others.length}</span>}
    </span>
  );
}

interface BarsProps extends TreeGridProps {
  readonly top: number;
  readonly size: { readonly width: number; readonly height: number };
  readonly bar: { readonly current: HTMLElement | null };
  readonly barWidth: number;
}

function Bars({ rows, range, scale, selected, step, top, size, bar, barWidth }: BarsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const height = Math.max(0, size.height - HEAD);
  useEffect(() => {
    const element = canvas.current;
    if (element === null || barWidth === 0 || height === 0) return;
    const pen = beginDrawing(element, { width: barWidth + ROOM, height });
    if (pen === null) return;
    const x: Scale = { low: range.from, high: range.to, from: 0, to: barWidth };
    drawBars(pen, { rows, x, scale, selected, step, top, height, rowHeight: ROW, palette: paletteOf(element) });
  }, [rows, range.from, range.to, scale, selected, step, top, height, barWidth, theme]);
  return (
    <div class="bars" style={{ top: `${HEAD}px` }} aria-hidden="true">
      <canvas
        ref={canvas}
        style={{ left: `${bar.current?.offsetLeft ?? 0}px`, width: `${barWidth + ROOM}px`, height: `${height}px` }}
      />
    </div>
  );
}
