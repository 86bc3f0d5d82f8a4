// Wraps fetch, which Gradio does all its requests with. The bar stands outside of what Gradio's style sheets reach.
const STYLE = `position: sticky; top: 0; z-index: 1000; padding: 10px 14px; display: flex; gap: 12px; flex-wrap: wrap;
  align-items: center; justify-content: center; font: 14px/1.4 system-ui, sans-serif; background: #92400e; color: #fff`;

function guardPage(header, version) {
  const REASONS = {
    401: 'You are not logged in to this server any more.',
    409: 'The server was updated since this page was loaded.',
  };
  const plainFetch = window.fetch.bind(window);

  function tell(status) {
    if (document.querySelector('.page-outdated')) return;
    const bar = document.createElement('div');
    bar.className = 'page-outdated';
    bar.setAttribute('role', 'alert');
    bar.style.cssText = STYLE;
    const button = document.createElement('button');
    button.textContent = 'Reload the page';
    button.style.cssText = 'padding: 4px 12px; border: 1px solid #fff; border-radius: 6px; background: none; color: #fff';
    button.addEventListener('click', () => location.reload());
    bar.dataset.status = status;
    bar.append(REASONS[status], button);
    document.body.prepend(bar);
  }

  function untell() {
    document.querySelector('.page-outdated[data-status="401"]')?.remove();
  }

  window.fetch = async (input, options) => {
    const url = new URL(input instanceof Request ? input.url : input, location.href);
    if (url.origin !== location.origin) return plainFetch(input, options);
    const headers = new Headers(options?.headers ?? (input instanceof Request ? input.headers : undefined));
    headers.set(header, version);
    const response = await plainFetch(input, { ...options, headers });
    if (response.status in REASONS) tell(response.status);
    else if (response.ok && url.pathname.includes('/gradio_api/component_server')) untell(); // logged in again elsewhere
    return response;
  };
}
