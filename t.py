import sys; sys.path.insert(0,'/tmp/wt-time')
from redbeat.crontabs import *
from redbeat.crontabs import _times_of
from celery.schedules import crontab
from datetime import *
from zoneinfo import ZoneInfo
import time
NY=ZoneInfo("America/New_York"); U=timezone.utc
def show(e, start, n=8, tz=NY):
    r=cron(e); a=start
    print(e)
    for _ in range(n):
        a=next_of_crontab(r,a,tz)
        if a is None: print(None);break
        print("   ",a.astimezone(tz), a.strftime("%H:%MZ %a"))
show("30 * * * *", datetime(2026,11,1,3,tzinfo=U),6)
show("*/30 * * * *", datetime(2026,3,8,5,45,tzinfo=U),6)
show("30 2 * * *", datetime(2026,3,7,0,tzinfo=U),4)
show("30 1 * * *", datetime(2026,10,31,0,tzinfo=U),4)
show("0 0 L * *", datetime(2026,1,1,tzinfo=U),4)
show("0 0 15W,LW * *", datetime(2026,1,1,tzinfo=U),6)
show("0 0 * * fri#2,mon#5,sunl", datetime(2026,1,1,tzinfo=U),6)
show("0 0 30 2 *", datetime(2026,1,1,tzinfo=U),6)
show("0 0 29 2 1", datetime(2026,1,1,tzinfo=U),3)
show("0 9 30 12 *", datetime(2011,12,1,tzinfo=U),2,ZoneInfo("Pacific/Apia"))
show("*/30 * * * *", datetime(2026,4,4,14,tzinfo=U),6,ZoneInfo("Australia/Lord_Howe"))
for e in ("* * * * *","30 2 * * *","0 0 29 2 *","0 0 30 2 *","0 0 31 * 1#1"):
    r=cron(e); a=datetime(2026,1,1,tzinfo=U); t=time.perf_counter(); k=200
    for _ in range(k):
        x=next_of_crontab(r,a,NY)
    print(e, (time.perf_counter()-t)/k*1e6,"us")
    t=time.perf_counter()
    for _ in range(k): _times_of(r)
    print((time.perf_counter()-t)/k*1e6,"us")
for bad in ("* * * *","60 * * * *","* * * foo *","*/0 * * * *","@reboot","* * 1-x * *","* * L-32 * *","* * 40W * *","* * * * MON#6",""):
    try: cron(bad); print("OK?",bad)
    except ValueError as e: print(e)
print(sorted(cron("0 22-2 * * 5-7").hour), cron("0 22-2 * * 5-7").day_of_week, cron("5/15 * * * MON-FRI/2").minute)
