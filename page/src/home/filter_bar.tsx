import { usePage } from '../context.ts';
import { ORDERS, STATUSES } from './filter.ts';

export function isFiltered(query: URLSearchParams): boolean {
  return ['text', 'status', 'label'].some((name) => (query.get(name) ?? '') !== '');
}

/** Fields of the filter and the order of runs. The address has their values. */
export function RunFilterBar() {
  const { address, set } = usePage();
  const textOf = (name: string) => address.query.get(name) ?? '';
  const searchField = (name: string, label: string, hint: string) => (
    <input
      type="search"
      aria-label={label}
      placeholder={hint}
      value={textOf(name)}
      onInput={(event) => set({ [name]: event.currentTarget.value }, { replace: true })}
    />
  );
  return (
    <div class="section-bar filter-bar">
      {searchField('text', 'filter runs by name or label', 'Name or label')}
      {searchField('label', 'filter runs by labels', 'label=value')}
      <label>
        <span class="dim">Status</span>{' '}
        <select value={textOf('status')} onChange={(event) => set({ status: event.currentTarget.value })}>
          <option value="">any</option>
          {Object.keys(STATUSES).map((status) => (
            <option key={status} value={status}>
              {status}
            </option>
          ))}
        </select>
      </label>
      <label>
        <span class="dim">Order</span>{' '}
        <select
          value={textOf('order') || 'created'}
          onChange={({ currentTarget: { value } }) => set({ order: value === 'created' ? undefined : value })}
        >
          {Object.entries(ORDERS).map(([order, { name }]) => (
            <option key={order} value={order}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <button
        type="button"
        class="plain"
        aria-pressed={textOf('reverse') === 'true'}
        onClick={() => set({ reverse: textOf('reverse') !== 'true' })}
      >
        Reverse
      </button>
    </div>
  );
}
