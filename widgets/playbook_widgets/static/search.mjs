// Sphinx cuts its excerpts from the whole of a page's <main>, which begins with buttons and blanks and holds every
// formula twice. Cut them from the article as it reads.
/* global Search */
Search.htmlToText = (html) => {
  const article = new DOMParser().parseFromString(html, "text/html").querySelector("article");
  for (const twice of article?.querySelectorAll(".headerlink, .katex-mathml, script, style") ?? []) twice.remove();
  return (article?.textContent ?? "").replace(/\s+/g, " ");
};
